"""Uses of a run's model: scores of new rows, an ONNX file, a model card."""
