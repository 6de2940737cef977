"""A conf for data that tnctl sees for the first time: what `tnctl init` writes.

named_files -> file_form -> sample -> column_figures -> column_kinds (the label is one) -> text;
first_conf calls them in this order.
"""
