"""The pages of the console, a module for each entry of the menu."""
