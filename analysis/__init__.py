"""Turns a run folder into limits, plots and a report. Never imports locust or gevent."""
