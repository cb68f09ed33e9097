"""Write the small files beside a store so that they survive a loss of power."""
