"""Prepare the contents of pages: templates, languages, forms, lists, times."""
