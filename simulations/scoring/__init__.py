"""From a run directory to scores of new rows, to an ONNX file and to a model card."""
