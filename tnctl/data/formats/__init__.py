"""One reader for each format of files: a file to pieces of Arrow columns."""
