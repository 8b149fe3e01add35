"""Partly's classifier in a scikit-learn Pipeline: texts in, tags out, most tags unknown.

    python examples/sklearn_text.py

An embedding (TF-IDF and a truncated SVD, in whose place any other may stand), then
`PartialLabelClassifier`. A search by cross-validation compares it with taking blanks for "no": the
score, mAP, looks at known labels only. Then the pipeline is pickled and asked about new texts.
"""

import pickle

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

import partly

TOPICS = {
    "food": "soup bread dinner taste fresh salty menu dessert cook spicy breakfast wine",
    "service": "waiter staff friendly rude polite helpful slow ignored smile manager reception",
    "price": "cheap bill expensive value euros paid overpriced worth bargain fee discount tip",
    "place": "view garden terrace parking station noisy street centre beach quiet walk",
    "room": "bed shower towel clean dusty window pillow heating carpet lamp balcony mattress",
}
FILLERS = "we were there last week and it was as my friend said though I would go again maybe not"


def write(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Reviews [count] put together by chance, and which topics they touch [count, 5]."""
    generator = np.random.default_rng(seed)
    labels = (generator.random((count, len(TOPICS))) < 0.35).astype(np.int8)
    vocabularies = [words.split() for words in TOPICS.values()]
    texts = []
    for row in labels:
        words = list(generator.choice(FILLERS.split(), 15))
        for touched, vocabulary in zip(row, vocabularies, strict=True):
            # A word of another topic slips in now and then.
            words += list(generator.choice(vocabulary, 3 if touched else generator.integers(2)))
        texts.append(" ".join(generator.permutation(words)))
    return np.array(texts, dtype=object), labels


def main() -> None:
    texts, labels = write(1200, seed=0)
    known = partly.hide(labels, "pal", keep=0.2, seed=0)  # -1: nobody said
    pipeline = Pipeline(
        [
            ("words", TfidfVectorizer()),
            ("embedding", TruncatedSVD(48, random_state=0)),
            ("tags", partly.PartialLabelClassifier(epochs=20, random_state=0)),
        ]
    )
    search = GridSearchCV(pipeline, {"tags__method": ["an", "partly"]}, cv=3).fit(texts, known)
    as_no, as_unknown = search.cv_results_["mean_test_score"]
    print(f"blank is no: mAP {as_no:.3f} over the known labels")
    print(f"blank is unknown: mAP {as_unknown:.3f} over the known labels")

    model = pickle.loads(pickle.dumps(search.best_estimator_))
    new, truth = write(1000, seed=1)
    print(f"{model['tags'].method} on new texts: mAP {model.score(new, truth):.3f}")
    review = (
        "we were there last week and the waiter was rude and the staff slow and the bill worth it"
    )
    tags = np.array(list(TOPICS))[model.predict([review])[0] == 1]
    print(f"{review}: {', '.join(tags)}")


if __name__ == "__main__":
    main()
