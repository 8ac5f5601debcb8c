# `make` alone lists the targets. Options are variables: make ramp LLM_URL=http://gpu:16000 STEPS=1,8,32
SHELL := /bin/sh
PY := .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help ramp baseline soak mixed poisson campaign demo ui master worker check sim gpu-agent report compare calibrate test lint clean

help: ## list the targets
	@echo "make TARGET [NAME=value ...]; no server named = the built-in simulator"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile | expand -t 14
	@echo "options: README.md, or .env.example"

ramp: .venv/.run ## step ramp 1..100 users: where the server saturates
	@$(PY) -m tokenswarm.launch ramp

baseline soak mixed poisson: .venv/.run
	@$(PY) -m tokenswarm.launch $@

baseline: ## one request at a time: fast enough alone? [KINDS=llm,guard]
soak: ## 30 minutes at the limit that the newest ramp found [USERS=20 HOLD=1800]
mixed: ## all kinds at once: who slows whom down? [LLM_USERS=20 GUARD_USERS=30 VLM_USERS=5]
poisson: ## open loop: Poisson arrivals at shares of the best rate [RATES=5,8,9]

campaign: .venv/.run ## baseline, ramp, soak, mixed in a row [RESUME=1 goes on after the last that passed]
	@$(PY) -m tokenswarm.launch campaign

demo: .venv/.run ## a ramp of about a minute on the simulator
	@$(PY) -m tokenswarm.launch demo

ui: .venv/.run ## Locust's web UI for live runs, on 127.0.0.1 [PLAN=ramp UI_PORT=8089]
	@$(PY) -m tokenswarm.launch ui

master: .venv/.run ## the plan over several client hosts [PLAN=ramp WORKERS=4 MASTER_BIND=10.0.0.5]
	@$(PY) -m tokenswarm.launch master

worker: .venv/.run ## on each client host: load processes for the master [MASTER=10.0.0.5 PROCESSES=2]
	@$(PY) -m tokenswarm.launch worker

check: .venv/.run ## preflight only: a request or two per target, shown as a record
	@$(PY) -m tokenswarm.launch check

sim: .venv/.run ## the simulator alone [SIM="--slots 16 --port 16000"]
	@$(PY) -m simulator $(SIM)

gpu-agent: .venv/.run ## on a GPU host that is not the master: NVML as Prometheus text [PORT=9400 GPU_DEVICES=0,1]
	@$(PY) -m tokenswarm.monitors.gpu --serve $(or $(PORT),9400)

compare: .venv/.run ## two sets of stored runs: did the change help? [A="RUN RUN RUN" B="RUN RUN RUN"]
	@$(PY) -m analysis.compare "$(A)" "$(B)"

calibrate: .venv/.run ## the meter's own error on this machine, against a server of known times [USERS=50]
	@$(PY) benchmarks/meter.py --users $(or $(USERS),50)

report: .venv/.run ## report of a stored run [RUN=latest]
	@$(PY) -m analysis.report $(or $(RUN),latest)

test: .venv/.dev ## all tests, in two halves side by side [TESTS=tests/test_wire.py for some]
	@$(PY) $(if $(TESTS),-m pytest $(TESTS),tests/halves.py)

lint: .venv/.dev ## ruff and mypy
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy tokenswarm simulator analysis

clean: ## take away .venv and caches (reports stay)
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache

.venv/bin/python:
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "tokenswarm needs Python 3.11 or newer as python3; this one is $$(python3 -V 2>&1)" >&2; exit 2; }
	@python3 -m venv .venv || { echo "python3 -m venv failed; on Debian or Ubuntu: apt install python3-venv" >&2; exit 2; }

.venv/.run: requirements.txt | .venv/bin/python
	@echo "setting up .venv (once; about a minute)" >&2
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/.dev: requirements.txt requirements-dev.txt | .venv/bin/python
	@echo "setting up .venv (once; about a minute)" >&2
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@ .venv/.run
