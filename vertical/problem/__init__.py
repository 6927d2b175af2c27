"""Linear models whose columns are spread over parties: problems, blocks of columns, the order of batches, minima."""
