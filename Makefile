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
# The first and the last release of FlashInfer that fp4tune knows: SGLang's pin, and the newest.
FLASHINFERS := 0.7.2 0.7.4
# The oldest Triton that our kernels are compiled with: that of PyTorch 2.11, which serving images have.
OLD_TRITON := 3.6.0

# Published measurements, as they are read: 0.12.0 is the release that the documents count.
REFERENCE := aiconfigurator-core==0.12.0

# CUTLASS's headers that its kernels are compiled with: the newest come with FlashInfer, the oldest with their own wheel.
NEW_CUTLASS := flashinfer-python==0.7.4
OLD_CUTLASS := nvidia-cutlass==4.2.0.0

.PHONY: setup demo test test-network test-slow test-gpu test-served-fastapi test-humming-versions test-flashinfer \
	test-old-triton test-cutlass test-reference browser-setup test-browser bench-dashboard screenshots \
	deploy-setup test-images lint format types check clean

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

# What FastAPI has a part in: the dashboard's views know nothing of it.
SERVED_TESTS = $(wildcard tests/api/test_*.py tests/api/dashboard/test_frame_*.py tests/api/dashboard/test_static.py)

$(SERVED_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(SERVED_VENV)
	$(SERVED_VENV)/bin/pip install -q -e '.[dev,postgres]' fastapi==$(SERVED_FASTAPI)
	@touch $@

test-served-fastapi: $(SERVED_VENV)/.ready
	$(SERVED_VENV)/bin/python -c 'import fastapi; assert fastapi.__version__ == "$(SERVED_FASTAPI)", fastapi.__version__'
	$(SERVED_VENV)/bin/python -m pytest $(SIDE_BY_SIDE) $(SERVED_TESTS) -m "not gpu and not network" $(PYTEST_ARGS)

# Each in a folder of its own that goes before the installed one; what they need is there, but for 0.1.12's NVML.
.make/humming/%/.ready: $(VENV)/.ready
	$(BIN)/pip install -q --no-deps --upgrade --target $(@D) humming-kernels==$* nvidia-ml-py
	@touch $@

test-humming-versions: $(HUMMINGS:%=.make/humming/%/.ready)
	@set -e; for release in $(HUMMINGS); do echo "Humming $$release"; \
		FP4TUNE_TEST_HUMMING=$$release PYTHONPATH=.make/humming/$$release \
		$(BIN)/python -m pytest tests/kernels/humming $(PYTEST_ARGS); done

# Each in an environment of its own. That of the newest sees everything of $(VENV), and gets the 2 GB that FlashInfer
# depends on; those of the others see that of the newest, and get FlashInfer alone.
SEES = import site; print("import site;", "; ".join(f"site.addsitedir({p!r})" for p in site.getsitepackages()))
FLASHINFER_VENV = $(PYTHON) -m venv $(@D) && $(1)/bin/python -c '$(SEES)' \
	> "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fp4tune-venv.pth"
NEWEST_FLASHINFER := .make/flashinfer/$(lastword $(FLASHINFERS))

$(NEWEST_FLASHINFER)/.ready: $(VENV)/.ready
	$(call FLASHINFER_VENV,$(VENV))
	$(@D)/bin/pip install -q flashinfer-python==$(lastword $(FLASHINFERS))
	@touch $@

.make/flashinfer/%/.ready: $(NEWEST_FLASHINFER)/.ready
	$(call FLASHINFER_VENV,$(NEWEST_FLASHINFER))
	$(@D)/bin/pip install -q --no-deps flashinfer-python==$*
	@touch $@

test-flashinfer: $(FLASHINFERS:%=.make/flashinfer/%/.ready)
	@set -e; for release in $(FLASHINFERS); do echo "FlashInfer $$release"; \
		FP4TUNE_TEST_FLASHINFER=$$release .make/flashinfer/$$release/bin/python -m pytest -W ignore::DeprecationWarning \
		tests/kernels/flashinfer $(PYTEST_ARGS); done

.make/triton/%/.ready: $(VENV)/.ready
	$(BIN)/pip install -q --no-deps --upgrade --target $(@D) triton==$*
	@touch $@

test-old-triton: .make/triton/$(OLD_TRITON)/.ready
	FP4TUNE_TRITON36=$(CURDIR)/$(<D) $(BIN)/python -m pytest $(SIDE_BY_SIDE) $(wildcard tests/kernels/triton/test_*_compile.py) -k other $(PYTEST_ARGS)

# Of a wheel of 100 MB only the headers are unpacked, and nothing that it needs is installed.
.make/cutlass/new/.ready: $(VENV)/.ready
	@mkdir -p $(@D)
	$(BIN)/pip download -q --no-deps --dest $(@D)/wheel $(NEW_CUTLASS)
	@$(BIN)/python -c 'import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); \
		z.extractall(sys.argv[2], [n for n in z.namelist() if "/data/cutlass/" in n])' $(@D)/wheel/*.whl $(@D)
	@rm -r $(@D)/wheel
	@touch $@

.make/cutlass/old/.ready: $(VENV)/.ready
	$(BIN)/pip install -q --no-deps --upgrade --target $(@D) $(OLD_CUTLASS)
	@touch $@

# Compiles kernels with nvcc, one at a time: each takes a core for one to three minutes and 5.6 GiB. What is built is kept.
test-cutlass: .make/cutlass/new/.ready .make/cutlass/old/.ready
	FP4TUNE_CUTLASS_CACHE_DIR=$(CURDIR)/.make/cutlass/cache FP4TUNE_TEST_CUTLASS=$(CURDIR)/.make/cutlass/new:$(CURDIR)/.make/cutlass/old \
		$(BIN)/python -m pytest tests/kernels/cutlass/test_build.py $(PYTEST_ARGS)

# Only its files are read: nothing of it is run, so nothing that it needs is installed.
.make/reference/.ready: $(VENV)/.ready
	$(BIN)/pip install -q --no-deps --upgrade --target $(@D) $(REFERENCE)
	@touch $@

test-reference: .make/reference/.ready
	FP4TUNE_TEST_REFERENCE=$(lastword $(subst ==, ,$(REFERENCE))) $(BIN)/python -m pytest --slow \
		tests/tuner/test_reference_import_real.py $(PYTEST_ARGS)

# Debian's Chromium, which the tests of the dashboard drive; nothing is fetched from anywhere but the system's packages.
browser-setup:
	@if command -v chromium >/dev/null; then chromium --version; \
		elif [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; \
		else echo "Chromium is not installed: sudo apt-get install chromium"; exit 1; fi

# They are part of make test, too, where they are skipped without a browser; here that is a failure.
test-browser: setup
	FP4TUNE_TEST_BROWSER=1 $(BIN)/python -m pytest $(SIDE_BY_SIDE) tests/browser $(PYTEST_ARGS)

bench-dashboard: setup
	$(BIN)/python benchmarks/dashboard_http.py

screenshots: setup
	$(BIN)/python tools/make_screenshots.py

# What the tests of docker/ need of Debian's packages: docker-compose and systemd read their files, podman builds and
# runs the images (by runc, because crun refuses machines that have cgroups of both versions), mmdebstrap makes their
# stand-in base.
DEPLOY_PACKAGES := docker-compose systemd podman buildah runc uidmap netavark aardvark-dns iptables catatonit \
	mmdebstrap

deploy-setup:
	@missing=$$(for name in $(DEPLOY_PACKAGES); do \
			dpkg-query -W -f '$${Status}' $$name 2>/dev/null | grep -q 'ok installed' || echo $$name; done); \
		if [ -z "$$missing" ]; then echo "all there: $(DEPLOY_PACKAGES)"; \
		elif [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing; \
		else echo "Not installed:" $$missing; exit 1; fi

# Stands for base images that no registry is there to give: the same release of Debian, with its Python.
.make/deploy/base.tar:
	@mkdir -p $(@D)
	mmdebstrap --quiet --variant=apt --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--include=python3,python3-pip,ca-certificates --format=tar bookworm $@.new
	@mv $@.new $@

# Builds both images and runs them as compose does; as root, with 3 GB of /tmp. What they are built on is a stand-in.
# A machine that lets nobody make containers or file systems in it (many containers do) is told apart from a fault of
# ours: there the tests are skipped, with the reason, and what runs of the images is tests/deploy/test_run_steps.py.
test-images: setup deploy-setup
	@$(MAKE) --no-print-directory .make/deploy/base.tar || echo "no base image can be made on this machine"
	FP4TUNE_TEST_BASE=$(CURDIR)/.make/deploy/base.tar $(BIN)/python -m pytest tests/deploy/test_images.py $(PYTEST_ARGS)

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
