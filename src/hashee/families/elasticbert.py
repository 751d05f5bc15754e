"""ElasticBERT: BERT layers, one pooler for each of them."""

from hashee.families.bert import BertAdapter
from hashee.families.elasticbert_model import ElasticBertConfig, ElasticBertModel


class ElasticBertAdapter(BertAdapter):
    model_type = "elasticbert"
    config_class = ElasticBertConfig
    encoder_class = ElasticBertModel
