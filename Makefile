# Two targets are the whole story: `make demo` and `make test`. Both install what is missing, build and run.

CARGO ?= cargo
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)/x86_64-unknown-linux-gnu/debug
DVS = $(TARGET_DIR)/dvs
# The whole workspace, with an example, so that features of shared crates are the same as in the tests: nothing is built twice.
BUILD = $(CARGO) build --workspace --bins --example pingpong

.PHONY: all build lib install-lib deb demo docs test test-long bench check clean help

all: build

help:
	@echo "make demo         three nodes, one container across them, an unmodified web server (KEEP=1 leaves it up)"
	@echo "make test         every test that takes minutes at most"
	@echo "make test-long    the rest: storms, crash tests with many seeds, a Debian root file system, files compared with one kernel (half a day; ONLY=robustness for some)"
	@echo "make bench        M3-IPC beside other mechanisms, half an hour after a build for release (BENCH=ipc, proxy, proc, disk, fs or reach for one part, ARGS='--help')"
	@echo "make build        the one binary: $(DVS)"
	@echo "make lib          the C library, libm3ipc"
	@echo "make install-lib  the C library, its headers and manual pages, to \$$DESTDIR\$$PREFIX (/usr/local)"
	@echo "make deb          a Debian package: the binary for release, unit, manual pages, completions, default settings"
	@echo "make docs         the documentation as a site to read and search without a network: target/docs/html/index.html"
	@echo "make check        format, lints, the room rule, fast tests"

build:
	@scripts/setup.sh build
	$(BUILD)

# A build of its own, optimised: nothing of the daemon is in it.
lib:
	@scripts/setup.sh build
	$(CARGO) build --release --package ipc-c
	kernel/ipc-c/library.sh link $(dir $(TARGET_DIR))release/libipc_c.a $(dir $(TARGET_DIR))lib

# root often has no cargo: then what `make lib` made is installed.
install-lib: export PREFIX ?= /usr/local
install-lib: export DESTDIR ?=
install-lib:
	@if command -v $(CARGO) >/dev/null; then $(MAKE) --no-print-directory lib; fi
	@test -e $(dir $(TARGET_DIR))lib/libm3ipc.so || { echo "install-lib: there is no library yet; first, as who has cargo: make lib" >&2; exit 1; }
	kernel/ipc-c/library.sh install $(dir $(TARGET_DIR))lib

# A build of its own, optimised: what is tested and what is installed differ in the compiler's settings alone.
deb:
	@scripts/setup.sh build
	$(CARGO) xtask deb

demo:
	@scripts/setup.sh demo
	$(BUILD)
	@$(TARGET_DIR)/xtask demo $(if $(KEEP),--keep)

check:
	@scripts/setup.sh build
	$(CARGO) xtask check

test:
	@scripts/setup.sh test
	$(CARGO) xtask check
	$(CARGO) xtask test-system

test-long:
	@scripts/setup.sh test
	$(CARGO) xtask test-long $(ONLY)

docs: build
	@scripts/setup.sh docs
	@scripts/docs.sh $(DVS) target/docs

# Between processes of one machine; between two nodes, and in a container over three, which need root.
BENCH ?= ipc proxy proc disk fs reach

# What is measured is what is installed, as its peers are.
bench:
	@scripts/setup.sh bench
	$(CARGO) build --release --package dvs
	cd bench && $(CARGO) test --release --quiet
	@status=0; for part in $(BENCH); do (cd bench && $(CARGO) run --release --quiet -- $$part $(ARGS)) || status=1; done; exit $$status

clean:
	$(CARGO) clean
