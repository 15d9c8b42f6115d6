# %% [markdown]
# # How does a server read a whole private set out of aggregated gradients?
#
# In vertical federated learning several parties hold different parts of the same samples. Here four parties hold one
# quarter each of 40 photographs of faces. The server sees the model, which samples were in each batch, and the *sum*
# of all gradients of a batch, so every single image seems to be hidden among the others. CAFE (Jin et al., NeurIPS
# 2021) gets them back. This notebook does it with the exact engine, in less than two minutes on two cores.
#
# ## The federation
#
# `vertical_problem` loads the images, cuts them into four slices each, and builds the network: one convolutional
# network per party, whose outputs a server combines.

# %%
from pathlib import Path

import jax
import numpy as np

from jaxleak import attacks
from jaxleak.attacks import aggregated
from jaxleak.study import rounds, sheets

Path("pictures").mkdir(exist_ok=True)

key = jax.random.key(0)
problem = rounds.vertical_problem("lfw_faces", num_samples=40, parties=4, seed=0, key=key)
print("slices of all parties:", problem.private.x.shape)

# %% [markdown]
# ## Steps I and II: watch rounds, then solve two linear systems
#
# A round is one batch of ten images. Every aggregated gradient is a sum over the images of its batch, and the batches
# overlap in different ways, so enough rounds give more equations than unknowns:
#
# * Step I solves for the gradient at the output of every image's first dense layer.
# * Step II solves for the inputs of that layer, the *features* of every image.
#
# The plan says how many rounds that takes. The number follows from the sizes alone.

# %%
plan = attacks.plan_cafe_exact(problem.model, num_samples=40, batch_size=10)
print(f"the server watches {plan.output_rounds} + {plan.feature_rounds} rounds")
features = rounds.forward_features(problem)
recovery = rounds.observe_and_recover(problem, features, plan, key=key)

# %% [markdown]
# The truth is used here for the first time, to see how good the answer is. The attacker has its own measure: the
# gradient that its answer predicts, beside the one that it saw.

# %%
error = rounds.relative_errors(features, recovery.H, recovery.live)
print(f"features: median relative error {np.median(error):.1e} (all of these images have one label)")
print(f"the attack says that it has an answer for {recovery.answered.mean():.0%} of the images")

# %% [markdown]
# ## Step III: from features to pixels
#
# The features are the output of a small convolutional network. Inverting it is one small problem per image slice.
# Eight images are enough for a picture.

# %%
wanted = np.flatnonzero(recovery.answered)[:8]
result = aggregated.invert_slices(problem.model, problem.params, recovery.H[wanted], wanted, chunk=8)
psnr = rounds.image_psnr(problem, result.x, wanted)
sheets.contact_sheet(
    Path("pictures/faces.png"), problem.dataset.x[wanted], problem.assemble(np.asarray(result.x)),
    captions=[f"{value:.0f} dB" for value in psnr], title="Faces behind aggregated gradients", zoom=3,
)  # fmt: skip
print(f"PSNR: {psnr.mean():.0f} dB on average, {psnr.min():.0f} dB at worst")

# %% [markdown]
# ![Private faces above their reconstructions](pictures/faces.png)
#
# `jaxleak demo` does the same for 100 faces, and `jaxleak demo --preset cifar10` for the paper's 800 images.
