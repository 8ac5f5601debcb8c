"""A pretend vLLM with known limits; it shares no code with tokenswarm, so that one bug cannot cancel out another."""
