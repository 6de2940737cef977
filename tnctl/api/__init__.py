"""tnctl from Python: what `import tnctl` offers, by the code of the commands. docs/python.md."""
