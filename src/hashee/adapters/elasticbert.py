"""ElasticBERT: BERT layers, one pooler for each of them."""

from hashee.adapters.bert import BertAdapter
from hashee.models.elasticbert import ElasticBertConfig, ElasticBertModel


class ElasticBertAdapter(BertAdapter):
    model_type = "elasticbert"
    config_class = ElasticBertConfig
    encoder_class = ElasticBertModel
