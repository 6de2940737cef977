# (b) With a graph that was compiled ahead of time (docs/aot.md):
#
#     make score_aot GRAPH=the folder of `tnctl split-graph aot=[1,32]`
#     make score_aot_static GRAPH=... ABSEIL=the folder that has abseil's folder absl
#     make graph_library GRAPH=...    build/libtnctl_graph.so, and graph_library.h beside it
#     make score_library              a program that loads such a library
#
# The graph is linked to the small runtime whose sources TensorFlow's wheel ships, built once for the CPU
# that the graph was compiled for, and for what that takes of abseil to libtensorflow_framework, or
# to one's own.

CXXFLAGS ?= -O3
AOT := $(GRAPH)/aot
# What the compiled graph says of itself: AOT_TENSORFLOW, AOT_CPU, AOT_OBJECTS, AOT_RUNTIME.
-include $(AOT)/compiled.mk

# The wheel says it in the name of the folder beside it.
TF_VERSION = $(shell ls '$(TF)/..' | sed -nE 's/^tensorflow(_cpu|_intel|_rocm)?-([0-9].*)\.dist-info$$/\2/p')
RUNTIME := $(BUILD)/runtime-$(AOT_TENSORFLOW)-$(AOT_CPU)
RUNTIME_OBJECTS := $(AOT_RUNTIME:%.cc=$(RUNTIME)/%.o)
# Abseil misses an include where the CPU has more than SSE2.
AOT_CXX := $(CXX) -std=c++17 $(CXXFLAGS) -fPIC -march=$(AOT_CPU) -DNDEBUG -include immintrin.h
AOT_PROGRAM := $(BUILD)/score_aot.o $(BUILD)/graph_runner.o $(COMMON_OBJECTS)

$(RUNTIME)/%.o: $(TF)/xla_aot_runtime_src/%.cc | aot_is_there
	@mkdir -p $(@D)
	$(AOT_CXX) -isystem $(TF)/include -w -c $< -o $@

# Made always: the network is a part of it, and GRAPH may be another than the last time.
.PHONY: score_aot score_aot_static graph_library score_library aot_is_there abseil_is_there
.PHONY: $(BUILD)/graph_library.o
score_aot: $(BUILD)/score_aot
score_aot_static: $(BUILD)/score_aot_static
graph_library: $(BUILD)/libtnctl_graph.so
score_library: $(BUILD)/score_library

aot_is_there: tensorflow_is_there
	@test $(words $(GRAPH)) -le 1 || { echo 'make takes no folder with a blank in its name. Make a link to it. Received: GRAPH=$(GRAPH)' >&2; exit 1; }
	@test -f '$(AOT)/compiled.h' || { echo 'GRAPH is the folder of a graph split with aot=[1,32], whole or as seen from $(CURDIR). Received: GRAPH=$(GRAPH)' >&2; exit 1; }
	@test '$(AOT_TENSORFLOW)' = '$(TF_VERSION)' || { echo 'the graph was compiled by TensorFlow $(AOT_TENSORFLOW), and this is $(TF_VERSION): install the same, or split the graph again' >&2; exit 1; }

$(BUILD)/graph_library.o: aot_is_there graph_library.cc
	@mkdir -p $(BUILD)
	$(AOT_CXX) -Wall -Wextra -Werror -isystem $(TF)/include -isystem $(AOT) -c graph_library.cc -o $@

COMPILED := $(BUILD)/graph_library.o $(AOT_OBJECTS:%=$(AOT)/%) $(RUNTIME_OBJECTS)
FRAMEWORK = -L$(TF) -l:libtensorflow_framework.so.2 -Wl,-rpath,$(TF)

$(BUILD)/score_aot: $(BUILD)/graph_library.o $(AOT_PROGRAM) $(RUNTIME_OBJECTS)
	$(AOT_CXX) $(AOT_PROGRAM) $(COMPILED) -o $@ $(FRAMEWORK)

# Written beside and renamed, for a service may have the old one loaded.
$(BUILD)/libtnctl_graph.so: $(BUILD)/graph_library.o graph_library.map $(RUNTIME_OBJECTS)
	$(AOT_CXX) -shared -Wl,--version-script=graph_library.map -Wl,-z,defs $(COMPILED) -o $@.new \
		$(FRAMEWORK)
	cp graph_library.h $(BUILD)
	mv $@.new $@

$(BUILD)/score_library: $(BUILD)/score_library.o $(BUILD)/graph_runner.o $(COMMON_OBJECTS)
	$(CC) $(CFLAGS) $^ -o $@ -ldl -lm

# Abseil's names have its version in them, so the runtime is compiled with the one it is linked to.
ABSEIL_VERSION := $(if $(wildcard $(ABSEIL)/absl/base/config.h),$(shell sed -nE 's/^.define ABSL_LTS_RELEASE_(VERSION|PATCH_LEVEL) //p' '$(ABSEIL)/absl/base/config.h'))
STATIC := $(BUILD)/static-$(AOT_TENSORFLOW)-$(AOT_CPU)-abseil$(subst $() ,.,$(ABSEIL_VERSION))
STATIC_OBJECTS := $(AOT_RUNTIME:%.cc=$(STATIC)/%.o)
ABSEIL_PARTS := base container crc debugging hash log numeric profiling strings synchronization \
	time types
ABSEIL_LEFT_OUT := test|benchmark|mock|print_hash_of|log/(internal/)?flags|_win\.cc
ABSEIL_SOURCES := $(if $(wildcard $(ABSEIL)/absl),$(shell cd '$(ABSEIL)' && \
	find $(ABSEIL_PARTS:%=absl/%) -name '*.cc' | grep -v -E '$(ABSEIL_LEFT_OUT)'))

abseil_is_there:
	@test -f '$(ABSEIL)/absl/base/config.h' || { echo 'ABSEIL is the folder that has a folder absl with the sources of abseil, whole or as seen from $(CURDIR). Received: ABSEIL=$(ABSEIL)' >&2; exit 1; }

$(STATIC)/%.o: $(TF)/xla_aot_runtime_src/%.cc | aot_is_there abseil_is_there
	@mkdir -p $(@D)
	$(AOT_CXX) -isystem $(ABSEIL) -isystem $(TF)/include -w -c $< -o $@

$(STATIC)/absl/%.o: $(ABSEIL)/absl/%.cc
	@mkdir -p $(@D)
	$(AOT_CXX) -isystem $(ABSEIL) -w -c $< -o $@

$(STATIC)/libabsl.a: $(ABSEIL_SOURCES:%.cc=$(STATIC)/%.o)
	rm -f $@
	ar rcs $@ $^

$(BUILD)/score_aot_static: aot_is_there abseil_is_there graph_library.cc $(AOT_PROGRAM) $(STATIC_OBJECTS) $(STATIC)/libabsl.a
	$(AOT_CXX) -Wall -Wextra -Werror -isystem $(ABSEIL) -isystem $(TF)/include -isystem $(AOT) \
		graph_library.cc $(AOT_PROGRAM) $(AOT_OBJECTS:%=$(AOT)/%) $(STATIC_OBJECTS) \
		$(STATIC)/libabsl.a -static -s -o $@
