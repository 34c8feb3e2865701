#!/usr/bin/env python3
"""Trains a small network with TensorFlow's MultiWorkerMirroredStrategy, a custom loop, one worker for each task.

Checkpoints are in ./checkpoints; a job that starts again goes on from the newest one.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

STEPS, BATCH = 60, 64

# From Slurm's variables: names and ports of all workers, and which one this is.
resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
    port_base=20000 + int(os.environ["SLURM_JOB_ID"]) % 10000,
    tasks_per_node=int(os.environ["SLURM_NTASKS"]) // int(os.environ["SLURM_NNODES"]),
    auto_set_gpu=False,
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
rank, workers = resolver.task_id, strategy.num_replicas_in_sync
chief = rank == 0
print(f"worker {rank} of {workers} on {os.environ['SLURMD_NODENAME']}", flush=True)


def batches():
    """Ever new data, other data for each worker: is the sum of the inputs positive?"""
    data = tf.random.Generator.from_seed(rank)
    while True:
        inputs = data.normal((BATCH, 32))
        yield inputs, tf.cast(tf.reduce_sum(inputs, 1, keepdims=True) > 0, tf.float32)


with strategy.scope():
    first = tf.Variable(tf.random.stateless_normal((32, 64), (1, 2)) * 0.2)
    second = tf.Variable(tf.random.stateless_normal((64, 1), (3, 4)) * 0.2)
    step = tf.Variable(0, dtype=tf.int64, trainable=False)


def local_step(inputs, labels):
    """One worker's part: gradients of its batch, summed over all workers, and a step of gradient descent."""
    with tf.GradientTape() as tape:
        outputs = tf.nn.relu(inputs @ first) @ second
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs))
    context = tf.distribute.get_replica_context()
    gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, [first, second]))
    for variable, gradient in zip([first, second], gradients):
        variable.assign_sub(0.5 * gradient)
    step.assign_add(1)
    return context.all_reduce(tf.distribute.ReduceOp.MEAN, loss)


@tf.function
def train(inputs, labels):
    return strategy.run(local_step, args=(inputs, labels))


# Every worker reads; the chief writes. All must begin at the same step.
saver = tf.train.Checkpoint(first=first, second=second, step=step)
keeper = tf.train.CheckpointManager(saver, "checkpoints" if chief else f"/tmp/{os.environ['SLURM_JOB_ID']}-{rank}", 2)
newest = tf.train.latest_checkpoint("checkpoints")
if newest:
    saver.restore(newest)

losses = []
for inputs, labels in batches():
    if int(step.numpy()) >= STEPS:
        break
    losses.append(float(strategy.experimental_local_results(train(inputs, labels))[0]))
    if int(step.numpy()) % 20 == 0:
        keeper.save()
        if chief:
            print(f"step {int(step.numpy())} loss {losses[-1]:.3f}", flush=True)

total = float(tf.reduce_sum(tf.abs(first)) + tf.reduce_sum(tf.abs(second)))
print(f"worker {rank}: done at step {int(step.numpy())}, sum of all weights {total:.6f}", flush=True)
