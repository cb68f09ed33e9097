"""Prepare what pages show: templates, languages, forms, lists, times."""
