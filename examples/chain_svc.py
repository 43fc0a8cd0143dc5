"""Text chunking (CoNLL-2000) by scikit-learn's fit and predict: the chain of examples/conll.py as an estimator.

python examples/chain_svc.py
"""

from torchssvm.datasets import CoNLL2000, chunk_scores
from torchssvm.estimators import ChainSVC

train, test = CoNLL2000("train"), CoNLL2000("test")
X, X_test = ([data.features(i) for i in range(len(data))] for data in (train, test))  # names of features, by token
y, y_test = ([data.tags(i) for i in range(len(data))] for data in (train, test))
tagger = ChainSVC(lam=0.001, tol=0.03, random_state=0).fit(X, y)
print(tagger.certificate_)
print(chunk_scores(y_test, tagger.predict(X_test)))
