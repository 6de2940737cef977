"""The shipped recipes: functions from named inputs and settings to a dense Keras model."""
