"""`make check`: is everything in place before load starts? Asks every target the way the load will ask it."""
