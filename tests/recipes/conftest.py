"""What tests of language recipes share."""

import pytest
import torch


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model in a folder, as from_pretrained takes it."""
    from paceline.recipes.data.tiny_models import tiny_llama, tiny_tokenizer

    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(7)
    tiny_llama().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
