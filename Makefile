# make demo   set everything up and run the main job end to end
# make test   set everything up and run the tests
#
# PYTHON       the Python to build .venv with (3.11 or newer)
# TORCH_INDEX  an extra package index to take PyTorch from, for machines without a GPU whose own index
#              offers only the CUDA build (PyTorch publishes one for CPU builds)
# TEST_JOBS    tests run in so many processes (2)
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
PYTEST_ARGS ?=
# Processes that the tests are shared out to, a file at a time, so that what a file makes once is made once.
TEST_JOBS ?= 2
SIDE_BY_SIDE := -n $(TEST_JOBS) --dist loadfile

BIN := $(VENV)/bin
TYPING := .make/typing
# The FastAPI that vllm==0.33.0 resolves to: the HTTP tests run on it, too.
SERVED_FASTAPI := 0.136.3
SERVED_VENV := .venv-fastapi-$(SERVED_FASTAPI)
# The releases of Humming that fp4tune knows beside that of requirements-humming.txt: SGLang's pin and vLLM's.
HUMMINGS := 0.1.12 0.1.19
# The oldest Triton that our kernels are compiled with: that of PyTorch 2.11, which serving images have.
OLD_TRITON := 3.6.0

.PHONY: setup demo test test-served-fastapi test-humming-versions test-old-triton test-network test-slow test-gpu lint \
	format types check clean

setup: $(VENV)/.ready

# A serving image brings its own torch: then the venv sees it, and nothing of it is installed again.
# Without a GPU the pinned release is asked for first; an index that does not have it still gives a usable torch.
$(VENV)/.ready: pyproject.toml constraints.txt requirements-humming.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "fp4tune needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Say make PYTHON=python3.x"; exit 1; }
	@if $(PYTHON) -c 'import torch' 2>/dev/null; \
		then $(PYTHON) -m venv --system-site-packages $(VENV); \
		else $(PYTHON) -m venv $(VENV); fi
	@if $(BIN)/python -c 'import torch' 2>/dev/null; then echo "torch: the one that is here already"; \
		elif [ -e /dev/nvidiactl ]; then $(BIN)/pip install -q torch $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)); \
		else $(BIN)/pip install -q -c constraints.txt torch $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)); fi
	@$(BIN)/pip install -q -e '.[dev,postgres]'
	@if [ ! -e /dev/nvidiactl ]; then $(BIN)/pip install -q -r requirements-humming.txt; fi
	@touch $@

demo: setup
	@$(BIN)/python tools/demo.py

test: setup
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not gpu and not network" $(PYTEST_ARGS)

test-network: setup
	$(BIN)/python -m pytest -m network $(PYTEST_ARGS)

test-slow: setup
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not gpu and not network" --slow $(PYTEST_ARGS)

test-gpu: setup
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

$(SERVED_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(SERVED_VENV)
	$(SERVED_VENV)/bin/pip install -q -e '.[dev,postgres]' fastapi==$(SERVED_FASTAPI)
	@touch $@

test-served-fastapi: $(SERVED_VENV)/.ready
	$(SERVED_VENV)/bin/python -c 'import fastapi; assert fastapi.__version__ == "$(SERVED_FASTAPI)", fastapi.__version__'
	$(SERVED_VENV)/bin/python -m pytest $(SIDE_BY_SIDE) tests/api -m "not gpu and not network" $(PYTEST_ARGS)

# Each in a folder of its own that goes before the installed one; what they need is there, but for 0.1.12's NVML.
.make/humming/%/.ready: $(VENV)/.ready
	$(BIN)/pip install -q --no-deps --upgrade --target $(@D) humming-kernels==$* nvidia-ml-py
	@touch $@

test-humming-versions: $(HUMMINGS:%=.make/humming/%/.ready)
	@set -e; for release in $(HUMMINGS); do echo "Humming $$release"; \
		FP4TUNE_TEST_HUMMING=$$release PYTHONPATH=.make/humming/$$release \
		$(BIN)/python -m pytest tests/kernels/humming $(PYTEST_ARGS); done

.make/triton/%/.ready: $(VENV)/.ready
	$(BIN)/pip install -q --no-deps --upgrade --target $(@D) triton==$*
	@touch $@

test-old-triton: .make/triton/$(OLD_TRITON)/.ready
	FP4TUNE_TRITON36=$(CURDIR)/$(<D) $(BIN)/python -m pytest $(SIDE_BY_SIDE) $(wildcard tests/kernels/triton/test_*_compile.py) -k other $(PYTEST_ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The folders under the name that users import them by, so that relative imports across rooms resolve.
$(TYPING)/fp4tune:
	@mkdir -p $@
	@for room in kernels db tuner api; do ln -sfn ../../../$$room $@/$$room; done

types: setup $(TYPING)/fp4tune
	MYPYPATH=$(TYPING) $(BIN)/mypy -p fp4tune
	@tools/check_types_look.sh $(BIN)/mypy $(TYPING)

check: lint types test

clean:
	rm -rf $(VENV) $(SERVED_VENV) .make build *.egg-info .coverage* .mypy_cache .ruff_cache .pytest_cache
