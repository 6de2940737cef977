"""Searches: many trials of a conf, whose values Optuna chooses by data.validation."""
