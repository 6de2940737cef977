"""The dense graph of a split: cut out, described by serving.json, checked, loaded, compiled."""
