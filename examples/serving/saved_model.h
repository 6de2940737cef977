/* saved_model.h - a SavedModel through TensorFlow's C API */
#ifndef SAVED_MODEL_H
#define SAVED_MODEL_H

#include "program.h"

extern const graph_runner saved_model_runner;

#endif
