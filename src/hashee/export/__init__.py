"""Models with exits without torch: one ONNX file that ONNX Runtime and OpenVINO run."""

from hashee.export.onnx import export_onnx
from hashee.export.runtime import OnnxModel, OpenVinoModel, load

__all__ = ["OnnxModel", "OpenVinoModel", "export_onnx", "load"]
