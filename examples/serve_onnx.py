"""Use an exported model with NumPy and ONNX Runtime only, without PyTorch and ibinn.

    ibinn export RUN model.onnx
    python examples/serve_onnx.py model.onnx inputs.npy

Prints class, probability and p-value of each input. inputs.npy holds inputs in the form that the model was
trained on. From an .npz file the array x is read. Without a file the inputs are random.
"""

import argparse
import json

import numpy as np
import onnxruntime


def predict(session: onnxruntime.InferenceSession, x: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs by name: probabilities, log_q_x (if the model has a density), p_value."""
    names = [output.name for output in session.get_outputs()]
    batches = [session.run(names, {"x": x[i : i + 256]}) for i in range(0, len(x), 256)]
    return {name: np.concatenate([batch[i] for batch in batches]) for i, name in enumerate(names)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="a file that ibinn export wrote")
    parser.add_argument("inputs", nargs="?", help="an .npy or .npz file")
    options = parser.parse_args()

    session = onnxruntime.InferenceSession(options.model, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    form, class_names = json.loads(about["input"]), json.loads(about["class_names"])
    if options.inputs:
        x = np.load(options.inputs)
        x = x["x"] if options.inputs.endswith(".npz") else x
    else:
        x = np.random.default_rng(0).uniform(0, form.get("pixel_max", 1), (5, *form["shape"]))
    output = predict(session, x.astype(form["dtype"]))
    for q, p in zip(output["probabilities"], output["p_value"], strict=True):
        print(f"{class_names[q.argmax()]}, probability {q.max():.3f}, p-value {p:.3f}")


if __name__ == "__main__":
    main()
