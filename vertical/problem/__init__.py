"""The mathematics of models whose columns are divided among parties: losses, blocks of columns, and batches."""
