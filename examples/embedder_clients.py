"""A faster embedder in LangChain, KeyBERT and BERTopic: each loads the folder and gives what SentenceTransformer gives.

pip install "hashee[embed,train,demo]" langchain-huggingface keybert bertopic
hashee speedup minilm --speedup 2 --limit 2000 --output fast
python examples/embedder_clients.py fast
"""

import sys

import numpy as np
from bertopic import BERTopic
from keybert import KeyBERT
from langchain_huggingface import HuggingFaceEmbeddings
from sentence_transformers import SentenceTransformer
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

import hashee  # noqa: F401  The one line that clients need: it makes folders with exits known to transformers.
from hashee.embedded import rotten_tomatoes


def langchain(folder: str, model: SentenceTransformer, texts: list[str]) -> None:
    """Embed documents and a query."""
    client = HuggingFaceEmbeddings(model_name=folder, encode_kwargs={"normalize_embeddings": True})
    documents = np.array(client.embed_documents(texts))
    assert np.abs(documents - model.encode(texts, normalize_embeddings=True)).max() <= 1e-5
    query = np.array(client.embed_query("a film that made me laugh"))
    best = int(np.argmax(documents @ query))
    print(f"LangChain: {documents.shape[0]} documents; nearest to the query: {texts[best]!r}")


def keybert(folder: str, texts: list[str]) -> None:
    """Find the words that a text is closest to, with an object and with the name of a folder."""
    text = " ".join(texts[:5])
    words = KeyBERT(model=SentenceTransformer(folder)).extract_keywords(text, top_n=5)
    assert len(words) == 5 and words == KeyBERT(model=folder).extract_keywords(text, top_n=5)
    print(f"KeyBERT: {', '.join(word for word, _ in words)}")


def bertopic(folder: str, texts: list[str]) -> None:
    """Group texts by topic; small parts in place of UMAP and HDBSCAN, which take longer to start than to run."""
    topics = BERTopic(
        embedding_model=folder, umap_model=PCA(n_components=5), hdbscan_model=KMeans(n_clusters=4, random_state=0)
    )
    found, _ = topics.fit_transform(texts)
    assert len(found) == len(texts) and len(set(found)) == 4
    print(f"BERTopic: {', '.join(topics.get_topic_info()['Name'])}")


def main(folder: str) -> None:
    """Open a folder with every client."""
    texts = [text for text, _ in rotten_tomatoes()][:200]
    model = SentenceTransformer(folder)
    assert type(model[0].auto_model).__name__.startswith("Hashee"), f"{folder} holds no model with exits"
    langchain(folder, model, texts)
    keybert(folder, texts)
    bertopic(folder, texts)


if __name__ == "__main__":
    main(sys.argv[1])
