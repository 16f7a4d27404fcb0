"""Data-parallel training of single-process scripts: ``horovodrun --auto -np 4 python train.py``.

``python -m horovod.auto`` initializes Horovod and patches PyTorch and Keras when the script imports them.
"""
