"""What is trained, to be replaced with your own: a small VGG, and pictures like CIFAR-10's made of random numbers."""

import os
from pathlib import Path

import torch
from torch import nn


class Pictures(torch.utils.data.Dataset):
    """Pictures of 3 x 32 x 32 in 10 classes: each class is a pattern, and each picture adds noise to it."""

    def __init__(self, count=2048):
        self.count = count
        self.patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        noise = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(index))
        return self.patterns[index % 10] + 2 * noise, index % 10


def vgg(width=8):
    """Four blocks of convolutions, then a linear layer."""
    blocks, channels = [], 3
    for out in (width, 2 * width, 4 * width, 8 * width):
        convolution = nn.Conv2d(channels, out, 3, padding=1)
        blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)))
        channels = out
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * channels, 10))


def batches(sampler, epoch, first, size):
    """The indices of one rank's batches of an epoch, from batch number `first` on."""
    sampler.set_epoch(epoch)
    indices = list(sampler)
    return [indices[at : at + size] for at in range(first * size, len(indices) - size + 1, size)]


class Metrics:
    """Prints metrics, and logs them to MLflow where MLFLOW_TRACKING_URI is set. For rank 0.

    A job that was requeued goes on with its run: the run's id is in the folder of its checkpoints.
    """

    def __init__(self, experiment, folder, params):
        self.mlflow = None
        if "MLFLOW_TRACKING_URI" not in os.environ:
            return
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # nodes may have no git: MLflow would warn at length
        try:
            import mlflow
        except ImportError:
            print("no metrics in MLflow: pip install mlflow-skinny", flush=True)
            return
        self.mlflow, note = mlflow, Path(folder, "mlflow-run")
        mlflow.set_experiment(experiment)
        if note.exists():
            mlflow.start_run(run_id=note.read_text())
        else:
            note.write_text(mlflow.start_run().info.run_id)
            mlflow.log_params(params)

    def log(self, step, **values):
        print(f"step {step}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()), flush=True)
        if self.mlflow:
            self.mlflow.log_metrics(values, step=step, synchronous=False)

    def end(self):
        if self.mlflow:
            self.mlflow.end_run()
