"""BERT-of-Theseus (Xu et al., EMNLP 2020): layers of a predecessor are replaced at random, and ever more often, by
those of a successor of half the depth, which is fine-tuned alone in the end.

The predecessor is the fine-tuned dense model and stays as it is; the successor starts from its first layers. As in the
paper, embeddings and head are the predecessor's and frozen while layers are being replaced, and are fine-tuned with the
successor once it is alone.
"""

from dataclasses import replace

from hashee.study.methods.static import Static
from hashee.study.replacing import Curriculum, ReplacedLayers, Replacement
from hashee.study.students import depth_at, student_of
from hashee.training.backbone import weights_fingerprint
from hashee.training.method import register_method
from hashee.training.stages import WORK, Candidate, Choice, Fit

SHARE = 0.5
"""Of the predecessor's layers."""


class Theseus(Static):
    """Progressive module replacing."""

    name = "theseus"

    def train(self, fit: Fit) -> Choice:
        """Fine-tune the dense model; then replace its layers by those of a successor."""
        dense = fit.dense()
        seed, layers = fit.settings.seed, dense.backbone.layers
        depth = depth_at(SHARE, layers)
        predecessor = dense.backbone.packed(dense.backbone.load(seed, layers))
        successor = dense.backbone.packed(student_of(dense.backbone, range(1, depth + 1), seed))
        model, curriculum = ReplacedLayers(predecessor, successor), Curriculum()
        folder = fit.folder / WORK / f"{self.name}-{depth}"
        job = replace(fit.job(self.name, model), saved=successor, callbacks=(Replacement(model, curriculum),))
        depends = {"predecessor": weights_fingerprint(predecessor), "curriculum": repr(curriculum)}
        record = fit.train_into(folder, job, depends)
        passes = fit.passes_after(dense)
        candidate = Candidate(f"{depth} layers", folder, successor.exit_table, record, 0.0, passes)
        return Choice(fit, [candidate], dense=dense)


register_method(Theseus())
