# Thin names for what cargo and tests/tools do. `make help` lists them.

RELEASE := target/release/halfhitch
BACKEND := xla-iree:local-task
PROMPT  := What is the capital of France?

.DEFAULT_GOAL := help
.PHONY: help doctor setup model run chat conformance test test-vulkan test-models test-full lint fmt docs deny clean plugins \
	fuzz sanitize soak \
	plugins-cuda plugins-vulkan plugins-metal \
	iree-runtime iree-runtime-cuda iree-runtime-vulkan iree-runtime-metal iree-env \
	bench bench-peers bench-1b gates test-gates fusion-report gpu-bundle gpu-check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9 -]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

doctor: ## check what this machine has, and say how to get what is missing
	@tests/tools/doctor.sh

setup: ## build the program, optimised
	@bash -c 'source tests/tools/common.sh; need_cargo; need_cc'
	cargo build --release --locked -p halfhitch

iree-runtime: ## build the IREE runtime from source, for local-sync and local-task, and fetch its compiler
	@csrc/build-runtime.sh build

iree-runtime-cuda iree-runtime-vulkan iree-runtime-metal: iree-runtime-%: ## ... with one driver more
	@csrc/build-runtime.sh build --drivers $*

iree-env: ## print what is there of IREE: versions, tools, built runtimes
	@csrc/iree-env.sh

plugins: setup iree-runtime ## build the IREE backend's plugins, optimised
	cargo build --release --locked -p halfhitch-xla-iree-local-task -p halfhitch-xla-iree-local-sync
	@tests/tools/install-plugins.sh release local-task local-sync

plugins-cuda plugins-vulkan plugins-metal: plugins-%: iree-runtime-% setup ## the same, on a driver for GPUs (metal: on macOS)
	@tests/tools/build-plugin.sh release $*

model: setup ## fetch and import the small real model into models/smollm2-135m (93 MB)
	@tests/tools/fetch-model.sh $(RELEASE)

run: model plugins ## set everything up and print an answer (PROMPT="..." asks something else)
	@$(RELEASE) generate --backend $(BACKEND) --model models/smollm2-135m --prompt "$$PROMPT"

chat: model plugins ## set everything up and talk with the model
	@$(RELEASE) chat --backend $(BACKEND) --model models/smollm2-135m

test: ## set everything up and run all tests
	@tests/tools/test.sh

test-vulkan: ## build the Vulkan plugin and test it on the device there is (a GPU, or Mesa's software)
	@tests/tools/test-vulkan.sh

test-gates: iree-runtime ## compile steps in every form for every target, against what came out before (10 minutes)
	cargo test --locked -p halfhitch-xla-iree --features gates --test gates

test-models: ## the same, and more models on the IREE backend: all checkpoints narrow, every feature (ten minutes more)
	@tests/tools/test.sh --features halfhitch-local-task-tests/models

test-full: ## the same, and all of the suite's models on the IREE backend (an hour more, the first time)
	@HALFHITCH_SUITE=full tests/tools/test.sh --features halfhitch-local-task-tests/models

conformance: plugins ## hold the IREE backend to the contract and to the numbers (minutes, the first time)
	@$(RELEASE) conformance --backend $(BACKEND)

fuzz: ## feed every parser with made-up input, a minute each (FUZZ_SECONDS, FUZZ_RUNS, FUZZ_JOBS)
	@tests/tools/fuzz.sh

sanitize: ## run the shim, the program and the unsafe parts under sanitizers, valgrind and Miri (20 minutes)
	@tests/tools/sanitize.sh

soak: ## run mixed sessions while all goes wrong that can: 30 minutes, or SOAK_MINUTES
	@tests/tools/soak.sh

bench: model plugins ## measure the real model here: precisions, packed or not, 1 and 2 threads (5 minutes)
	@$(RELEASE) bench --backend $(BACKEND) --model models/smollm2-135m --precision f32,f16 \
		--quant packed,dequant --threads 1,2 --at 50,1000

bench-peers: model plugins ## ... beside llama.cpp, MLX and candle, into docs/bench (10 minutes, and as much to build them)
	@bench/peers.sh smollm2

bench-1b: model plugins ## ... a model of Llama-3.2-1B's shape with random weights, beside llama.cpp, into docs/bench
	@bench/peers.sh 1b

gates: model plugins ## run the accuracy gate for every default and precision, into docs/gates (10 minutes)
	@tests/tools/record-gates.sh $(RELEASE)

fusion-report: plugins model ## compile and count graphs for every target, into docs/fusion.md (half an hour)
	@python3 bench/fusion/report.py --program $(RELEASE)

gpu-bundle: plugins plugins-cuda model ## put together what a machine with an NVIDIA GPU needs for gpu-check
	@bench/gpu/bundle.sh cuda

gpu-check: ## run the bundle here: tokens, accuracy, speed (8 minutes; needs an NVIDIA GPU)
	@python3 .cache/gpu-bundle/cuda/check.py --out gpu-check.json

lint: ## formatting, shell scripts, licences and sources, clippy, docs
	@tests/tools/lint.sh

fmt: ## format the code
	cargo fmt --all

docs: ## build the API documentation
	@tests/tools/lint.sh docs

deny: ## check licences, sources and banned crates
	@tests/tools/lint.sh deny

clean: ## remove what was built; models and downloads stay
	cargo clean

run: export PROMPT := $(PROMPT)
