"""The model families that hashee supports, one line each; importing this package alone imports no model code."""

from dataclasses import dataclass

PREFIX = "hashee-"
"""A converted model's type is this prefix and the type of its family."""


@dataclass(frozen=True)
class Family:
    """A family's `config.model_type` in Hugging Face, and the module of `hashee.families` that has its adapter."""

    model_type: str
    module: str
    adapter: str | None
    """The class in it that describes the encoder; None: the models only decode."""
    is_in_transformers: bool = True
    """Whether transformers has the dense models; if not, the module defines and registers them too."""
    decoder: str | None = None
    """The class in it that describes the decoder, where tokens can exit in that."""
    needs: str | None = None
    """A name in transformers that the lowest version of it that hashee supports lacks; the family is left out there."""


FAMILIES = (
    Family("albert", "albert", "AlbertAdapter"),
    Family("bart", "bart", "BartAdapter", decoder="BartDecoderAdapter"),
    Family("bert", "bert", "BertAdapter"),
    Family("camembert", "roberta", "CamembertAdapter"),
    Family("cpt", "cpt", "CptAdapter", is_in_transformers=False, decoder="CptDecoderAdapter"),
    Family("deberta-v2", "deberta_v2", "DebertaV2Adapter"),
    Family("distilbert", "distilbert", "DistilBertAdapter"),
    Family("elasticbert", "elasticbert", "ElasticBertAdapter", is_in_transformers=False),
    Family("electra", "electra", "ElectraAdapter"),
    Family(
        *("encoder-bart", "encoder_bart", "EncoderBartAdapter"),
        is_in_transformers=False,
        decoder="EncoderBartDecoderAdapter",
    ),
    Family("eurobert", "eurobert", "EuroBertAdapter"),
    Family("gte", "gte", "GteAdapter", needs="GteModel"),
    Family("llama", "llama", None, decoder="LlamaDecoderAdapter"),
    Family("marian", "marian", "MarianAdapter", decoder="MarianDecoderAdapter"),
    Family("mbart", "bart", "MBartAdapter", decoder="MBartDecoderAdapter"),
    Family("modernbert", "modernbert", "ModernBertAdapter"),
    Family("mpnet", "mpnet", "MPNetAdapter"),
    Family("nomic_bert", "nomic_bert", "NomicBertAdapter"),
    Family("roberta", "roberta", "RobertaAdapter"),
    Family("roberta-prelayernorm", "roberta_prelayernorm", "RobertaPreLayerNormAdapter"),
    Family("t5", "t5", "T5Adapter"),
    Family("xlm-roberta", "roberta", "XLMRobertaAdapter"),
)
