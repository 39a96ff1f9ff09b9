# Every target is one call of the `bench` command; `bench` works without make, too.
#
#   make bench MODE=ddp GPUS=4        one run
#   make verify                       do all modes compute the same update?
#   make bench VENV=none              on Colab, Kaggle or a cluster: use this Python, replace nothing in it

VENV   ?= .venv#   the environment to make and use; none: use PYTHON as it is
PYTHON ?= python3# the Python to set up with (3.11 to 3.13)
ARGS    =#         passed on as it stands: make test ARGS="-k ddp"

# Options of a run. One that is given on make's command line becomes the flag of the same name (GPUS=4: --gpus="4");
# one that happens to be in the environment is ignored. The value reaches the shell as "$GPUS", so it may hold anything.
RUN_VARIABLES := MODE GPUS MODEL DATA IMAGE_SIZE BATCH ACCUMULATE WARMUP STEPS EPOCHS LR MOMENTUM NESTEROV WEIGHT_DECAY OPTIMIZER \
  SCHEDULE SCHEDULE_EPOCHS SCHEDULE_FACTOR LR_BATCH LR_WARMUP_STEPS LR_WARMUP_EPOCHS CLIP_NORM LOSS_GUARD NORM \
  PRECISION ALLOW_SLOW CHANNELS_LAST COMPILE PRETRAINED FREEZE TRAIN_ONLY TRUST AUGMENT IN_MEMORY SKIP_BAD \
  DATA_DIR CHECKPOINT CHECKPOINT_STEPS RESUME EVALUATE TARGET TRACK COPY_TO SEED WORKERS THREADS LAUNCHER DIST_URL \
  DEVICE SHARE_GPU TUNED BUCKET_CAP_MB GRADIENT_AS_BUCKET_VIEW STATIC_GRAPH BROADCAST_BUFFERS OVERLAP COMPRESSION \
  FUSION_MB CYCLE_TIME_MS AUTOTUNE ADASUM SYNC INIT_SYNC STEP_BARRIER ITEM_SYNC STORAGE_MS MISTAKE \
  WATCH REPLICAS PROFILE BASELINES TIMEOUT OUT \
  SNAPSHOTS FAULT SUITE ROLE ROUND \
  ROUNDS QUICK STRICT REPLAY MAX_GPUS SEEDS

on_command_line = $(filter command,$(firstword $(origin $1)))
GIVEN := $(foreach v,$(RUN_VARIABLES),$(if $(call on_command_line,$v),$v))
FLAGS := $(join $(addprefix --,$(if $(GIVEN),$(shell echo $(GIVEN) | tr A-Z_ a-z-))),$(patsubst %,="$$%",$(GIVEN)))

# A misspelt variable must not be a silent default.
KNOWN   := $(RUN_VARIABLES) TO FORMAT MEMORY A B BOUND FOLDER NAME SUBMITTED SETS VENV PYTHON ARGS SHELL MAKE MAKEFLAGS MFLAGS
UNKNOWN := $(filter-out $(KNOWN) -%,$(foreach v,$(.VARIABLES),$(if $(call on_command_line,$v),$v)))
ifneq ($(UNKNOWN),)
  $(error unknown variable $(UNKNOWN); known: $(RUN_VARIABLES) VENV PYTHON ARGS)
endif

ifeq ($(VENV),none)
  PY    := $(PYTHON)
  READY := $(shell $(PYTHON) -m bench.install.packages --stamp-name)
  DEV    = @$(PYTHON) -m bench.install.packages --venv none --extra dev
  COURSE = $(READY)-course
  export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
else
  PY    := $(VENV)/bin/python
  READY := $(VENV)/.ready
  COURSE = $(VENV)/.course
endif
# Flags of single commands, likewise: $(call own,TO) is --to="$TO" where TO was given; $(call needed,A) stops without A.
own    = $(foreach v,$1,$(if $(call on_command_line,$v),--$(shell echo $v | tr A-Z_ a-z-)="$$$v"))
needed = $(if $(call on_command_line,$1),"$$$1",$(error $@ needs $1=…: see `make help`))

BENCH := $(PY) -m bench
RUNS  := $(if $(call on_command_line,OUT),"$$OUT",results/runs)

.DEFAULT_GOAL := help
.PHONY: bench compare scaling breakdown knobs accuracy unsynced-init lab check report plots table diff pool verify doctor gpu-check selfbench notebooks site jupyter release grade solutions-check install-horovod setup test lint clean help

bench: $(READY) ## one benchmark run: MODE=single|dp|ddp|horovod GPUS=n, and any other option of `bench run --help`
ifeq ($(if $(call on_command_line,MODE),$(MODE)),horovod)
	@$(BENCH) install-horovod >&2
endif
	@$(BENCH) run $(FLAGS)

compare: $(READY) ## all modes on one workload, fairly: GPUS=2 [ROUNDS=8 QUICK=1 STRICT=1 REPLAY=dp-workers|…]
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) compare $(FLAGS)

scaling: $(READY) ## weak and strong scaling of every mode: MAX_GPUS=4
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) scaling $(FLAGS)

breakdown: $(READY) ## where the step and the memory go, with the timeline of one step: GPUS=2
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) breakdown $(FLAGS)

knobs: $(READY) ## each setting against the defaults: of an engine, MODE=ddp|horovod GPUS=2; of training, MODE=single|dp
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) knobs $(FLAGS)

accuracy: $(READY) ## do all modes reach the same accuracy? trained to the end, paired by seed: GPUS=2 [SEEDS=5 QUICK=1]
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) accuracy $(FLAGS)

unsynced-init: $(READY) ## what is lost when replicas start from different weights: GPUS=2 [SEEDS=10 QUICK=1]
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) unsynced-init $(FLAGS)

lab: $(READY) ## a known mistake beside the right version: NAME=no-reshuffle [SEEDS=3 QUICK=1], or NAME=all
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) lab $(FLAGS) $(call own,NAME)

check: $(READY) ## look for the known mistakes in the records below OUT (default results/runs)
	@$(BENCH) check $(RUNS)

report: $(READY) ## one self-contained page from the records below OUT (default results/runs)
	@$(BENCH) report $(RUNS) --html

table: $(READY) ## the records below OUT as data: FORMAT=csv|parquet|md TO=file MEMORY=1
	@$(BENCH) table $(RUNS) $(call own,TO FORMAT MEMORY)

diff: $(READY) ## two sets of records compared: A=folder B=folder [BOUND=5 STRICT=1]
	@$(BENCH) diff $(call needed,A) $(call needed,B) $(call own,BOUND STRICT)

pool: $(READY) ## records of many machines in one table and one picture: FOLDER=folder
	@$(BENCH) pool $(call needed,FOLDER) $(call own,OUT)

plots: $(READY) ## every picture as SVG and PNG from the records below OUT
	@$(BENCH) plots $(RUNS)

verify: $(READY) ## show that all modes compute the same update
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) verify $(FLAGS)

doctor: $(READY) ## what this machine has, what each mode can run here, what is wrong and how to mend it
	@$(BENCH) doctor $(FLAGS)

gpu-check: $(READY) ## the checks that need a GPU
	@$(BENCH) gpu-check $(FLAGS)

selfbench: $(READY) ## what the harness itself costs
	@$(BENCH) selfbench $(FLAGS)

notebooks: $(COURSE) ## execute every chapter of the course, into build/notebooks: [NAME=03 QUICK=1 ARGS=--pair]
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) notebooks $(call own,NAME QUICK) $(ARGS)

site: $(COURSE) ## the course as pages in build/site; executes the chapters that have changed: [QUICK=1]
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) site $(call own,QUICK)

jupyter: $(COURSE) ## open the chapters in JupyterLab
	@$(BENCH) jupyter

release: $(COURSE) ## the students' copies of the problem sets, without solutions, in build/release: [NAME=03 OUT=folder SETS=folder]
	@$(BENCH) release $(call own,NAME SETS OUT)

grade: $(COURSE) ## points and feedback in build/grades: SUBMITTED=folder of STUDENT/NN_name.ipynb [NAME=03 TIMEOUT=60 OUT=folder SETS=folder]
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) grade $(call needed,SUBMITTED) $(call own,NAME SETS OUT TIMEOUT)

solutions-check: $(COURSE) ## every problem set's solution scores full, its blank zero: [NAME=03 TIMEOUT=60 SETS=folder]
	@$(BENCH) install-horovod >&2 || true
	@$(BENCH) solutions-check $(call own,NAME SETS TIMEOUT)

install-horovod: $(READY) ## compile and install Horovod for the installed torch (ARGS="--gpu nccl", --force, …)
	@$(BENCH) install-horovod $(ARGS)

setup: $(READY) ## only set up: the other targets do so by themselves

$(READY): pyproject.toml bench/install/requirements.lock
	@$(PYTHON) -m bench.install.packages --venv "$(VENV)" --stamp "$@"

$(COURSE): $(READY) bench/install/requirements-notebooks.lock
	@$(PYTHON) -m bench.install.packages --venv "$(VENV)" --notebooks --stamp "$@"

test: $(COURSE) ## the test suite (ARGS="-k name" for a part of it, -n 0 for one test at a time)
	$(DEV)
	@$(PY) -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(READY) ## the style checks
	$(DEV)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

clean: ## remove caches and build outputs; keeps .venv and results
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo; echo "Variables: $(RUN_VARIABLES) VENV PYTHON ARGS"
