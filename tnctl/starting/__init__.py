"""A conf for data that tnctl sees for the first time: what `tnctl init` writes.

named_files -> file_form -> sample -> column_figures -> label_choice -> column_kinds -> conf_text;
first_conf calls them in this order.
"""
