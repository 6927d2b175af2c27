"""The tests; a package, so that its folders may be called like the packages they test."""
