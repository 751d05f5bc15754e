"""CPT: a BERT encoder under a BART-style decoder."""

import dataclasses
from typing import Any

from transformers import BertModel

from hashee.cost.macs import EncoderShape
from hashee.families.bart import BartAdapter
from hashee.families.bert import BertAdapter
from hashee.families.cpt_model import CptConfig


class CptAdapter(BertAdapter):
    model_type = "cpt"
    config_class = CptConfig
    encoder_class = BertModel

    def shape(self, config: Any) -> EncoderShape:
        return dataclasses.replace(BartAdapter().shape(config), looked_up=True)
