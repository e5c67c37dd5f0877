# SPDX-License-Identifier: GPL-2.0-or-later
#
# make demo   does the main job: builds Holdfast, boots a KVM host in a box, and shows what the
#             stock scheduler and scx_holdfast make of an overcommitted host. Results go to
#             results/demo/.
# make test   runs every test: units, properties, BPF in the lab's kernel, a small lab experiment.
# make quick  runs the tests that boot nothing: units, properties, and the scheduler in a model.
# make build  builds everything into target/dist/.
# make deb    makes Debian packages of what is built, in target/packages/; make tarball and
#             make image: of programs that need no library; make dist: of the source and its crates.
# make check  formatting, lints, licences and pages.
# make book   builds the book of docs/ into target/book/.
#
# On Debian 12 with a Rust toolchain; what else the build needs is installed with apt (as root).

DIST   := target/dist
STATIC := x86_64-unknown-linux-gnu
# The agent runs where there is no C library: first program of the lab's host and of its guests.
AGENT_FLAGS := --config 'target.$(STATIC).rustflags=["-C","target-feature=+crt-static"]'

# A release's source has its crates with it: nothing is fetched or installed then.
OFFLINE := $(wildcard vendor)
# Any clang from 18 on: the scx crates compile for version 4 of the BPF instruction set.
CLANG :=
ifneq ($(CLANG),)
export BPF_CLANG := $(CLANG)
endif
APT_PACKAGES := $(if $(CLANG),,clang-19 llvm-19 libclang1-19)
APT_PACKAGES += libelf-dev zlib1g-dev libc6-dev gcc make pkg-config python3
FMT_PACKAGES := clang-format-19
TEST_TOOLS := target/tools
C_SOURCES = $(shell git ls-files '*.c' '*.h')

PREFIX  := /usr/local
DESTDIR :=
UNITS   := holdfast-export.service holdfast-record.service scx_holdfast.service
SHARED  := $(DESTDIR)$(PREFIX)/share/holdfast
LAB     := $(DESTDIR)$(PREFIX)/lib/holdfast
UNITDIR := $(DESTDIR)$(PREFIX)/lib/systemd/system
# Man pages and completions, which each program makes of its own options.
MANUAL := target/manual
# Licences of all that the programs link.
LICENCES := target/licences.txt

# Patterns for the shell.
MANPAGES = $(addprefix $(DESTDIR)$(PREFIX)/share/man/, \
	man1/holdfast.1 man1/holdfast-*.1 man8/scx_holdfast.8)
COMPLETIONS = $(foreach program, holdfast scx_holdfast, \
	$(addprefix $(DESTDIR)$(PREFIX)/share/, bash-completion/completions/$(program) \
	zsh/site-functions/_$(program) fish/vendor_completions.d/$(program).fish))

.PHONY: all build demo test quick check book fmt deps deps-check test-tools clean
.PHONY: check-paths install uninstall
.PHONY: deb tarball image dist test-packages
all: build

demo: build
	@echo "== Measuring: stock, the base scheduler without guest knowledge, and scx_holdfast"
	$(DIST)/holdfast lab run experiments/demo.toml --output results/demo

# What is built of the workspace. A crate has the features that all who are built together want of
# it: built apart, programs and tests would have half of the crates compiled two or three times.
CARGO_TARGETS = --bins
test: CARGO_TARGETS = --bins --examples --tests

# Downloads go on while the compiler is busy.
build: deps
	@echo "== Building Holdfast into $(DIST)/"
	@mkdir -p $(DIST)/workloads
	cargo build --release --locked --workspace $(CARGO_TARGETS)
	@$(if $(OFFLINE),true,target/release/holdfast lab fetch) & fetch=$$!; \
	cargo build --release --locked -p holdfast-agent --target $(STATIC) $(AGENT_FLAGS) && \
	$(MAKE) --no-print-directory -C workloads O=$(abspath target/workloads) && \
	wait $$fetch
	install -m755 target/release/holdfast target/release/scx_holdfast \
		target/$(STATIC)/release/holdfast-agent $(DIST)/
	install -m755 target/workloads/workloads/* $(DIST)/workloads/
	rm -rf $(MANUAL)
	$(DIST)/holdfast manual $(MANUAL)
	$(DIST)/scx_holdfast --manual $(MANUAL)
	packaging/licences >$(LICENCES)

test: build test-tools
	@echo "== Units, properties, and the lab: BPF in its kernels, guests of each kernel"
	HOLDFAST_TOOLS=$(abspath $(TEST_TOOLS)) \
		cargo test --release --locked --workspace --no-fail-fast -- --test-threads 2
	@echo "== A small experiment from end to end"
	$(DIST)/holdfast lab run experiments/smoke.toml --check --output target/smoke
	@echo "== Pages that are made of help texts"
	scripts/make-reference --check
	@echo "== Workloads"
	workloads/test.sh target/workloads/workloads
	@echo "== Installation"
	packaging/test.sh

# Without root, and while a change is being written. Build with `make build` first for cargo's sake:
# it installs what the compiler needs.
QUICK := $(filter-out emulated,$(basename $(notdir $(wildcard crates/*/tests/*.rs)))) policy
quick:
	cargo test --release --locked --workspace --lib --bins $(addprefix --test ,$(sort $(QUICK)))

check: deps-check
	cargo fmt --all --check
	clang-format-19 --dry-run --Werror $(C_SOURCES)
	scripts/check-text
	scripts/check-licences
	scripts/make-results --check
	scripts/make-book target/book-tools
	cargo clippy --release --locked --workspace --all-targets -- -D warnings

book:
	scripts/make-book target/book-tools

fmt: deps-check
	cargo fmt --all
	clang-format-19 -i $(C_SOURCES)

deps:
	@$(if $(OFFLINE),,scripts/install-packages $(APT_PACKAGES))

# Programs of others that tests ask what they make of our output.
test-tools:
	@scripts/install-test-tools $(TEST_TOOLS)

deps-check: deps
	@scripts/install-packages $(FMT_PACKAGES)

# What follows uses PREFIX and DESTDIR without quotes.
check-paths: export PATHS = $(DESTDIR)$(PREFIX)
check-paths: export ABSOLUTE = $(PREFIX)
check-paths:
	@case "$$ABSOLUTE" in /*) ;; *) echo "make: PREFIX must be an absolute path" >&2; exit 2;; esac
	@case "$$PATHS" in \
	*[!A-Za-z0-9/._+~-]*) \
		echo "make: PREFIX and DESTDIR may have letters, digits and /._+~- only" >&2; exit 2;; \
	esac

# Builds nothing: root may have no toolchain. The lab has its programs in one directory, as DIST is;
# two of them are links.
install: check-paths
	@for program in holdfast scx_holdfast holdfast-agent; do \
		test -x $(DIST)/$$program || \
			{ echo "make install: run make build first: no $(DIST)/$$program" >&2; exit 1; }; \
	done
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/sbin $(LAB)/workloads $(UNITDIR) $(SHARED)
	install -m755 $(DIST)/holdfast $(DESTDIR)$(PREFIX)/bin/
	install -m755 $(DIST)/scx_holdfast $(DESTDIR)$(PREFIX)/sbin/
	install -m755 $(DIST)/holdfast-agent $(LAB)/
	install -m755 $(DIST)/workloads/* $(LAB)/workloads/
	ln -sf ../../bin/holdfast ../../sbin/scx_holdfast $(LAB)/
	for unit in $(UNITS); do \
		sed 's,=/usr/\(s\?bin\)/,=$(PREFIX)/\1/,' packaging/systemd/$$unit >$(UNITDIR)/$$unit && \
		chmod 644 $(UNITDIR)/$$unit || exit; \
	done
	find $(MANUAL) -type f -printf '%P\n' | while read -r file; do \
		install -Dm644 $(MANUAL)/$$file $(DESTDIR)$(PREFIX)/share/$$file || exit; \
	done
	sed -i 's,/usr/\(lib\|share\)/holdfast,$(PREFIX)/\1/holdfast,' $(MANPAGES)
	cp -R --no-preserve=all experiments packaging/grafana packaging/prometheus packaging/queries \
		$(SHARED)/
	install -m644 $(LICENCES) $(SHARED)/
	install -m644 packaging/default/holdfast $(SHARED)/default
	chmod -R a+rX $(SHARED)

uninstall: check-paths
	rm -rf $(LAB) $(SHARED)
	rm -f $(DESTDIR)$(PREFIX)/bin/holdfast $(DESTDIR)$(PREFIX)/sbin/scx_holdfast
	rm -f $(UNITS:%=$(UNITDIR)/%) $(MANPAGES) $(COMPLETIONS)

# Packages of what `make build` has built.
deb:
	packaging/deb

tarball:
	packaging/tarball

image: tarball
	packaging/image

# The source, with all crates.
dist:
	packaging/source

test-packages:
	packaging/test-packages

clean:
	cargo clean
