# %% [markdown]
# # How do I add an attack of my own?
#
# A gradient inversion is a value of `Settings`: what is optimised, what is compared, by which optimizer, and what is
# known of images. Your own attack is a function of a few lines that returns such a value. Everything else works with it
# unchanged: compiled loops, restarts, label inference, checkpoints, scores. The notebook takes about a minute on two
# cores.
#
# ## The idea
#
# Inverting Gradients (Geiping et al., 2020) compares gradients by their cosine and smooths the image by its total
# variation. The largest tensors dominate the cosine of the *whole* gradient. What if every tensor counted alike? In
# jaxleak a distance is a function of the observed and of the simulated gradient.

# %%
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import Batch, Observation, attacks, audit, data, metrics, models, objectives, protocols
from jaxleak.attacks import presets
from jaxleak.attacks.client_updates import Gradients, pixels, variation_prior
from jaxleak.study import plots, sheets

Path("pictures").mkdir(exist_ok=True)


def tensor_cosine(observed, simulated):
    """The mean over all tensors of one minus the cosine between the observed and the simulated gradient."""
    distances = jax.tree.map(objectives.cosine, observed, simulated)
    return jnp.mean(jnp.stack(jax.tree.leaves(distances)))


def every_tensor_alike(iterations=400):
    """Pixels, the mean cosine of all tensors, and a total variation."""
    return attacks.Settings(
        candidate=pixels("uniform"),
        compare=Gradients(tensor_cosine),
        optimizer=presets.cosine_decay_adam(0.05, iterations),
        iterations=iterations,
        priors=((0.1, variation_prior()),),
    )


# %% [markdown]
# ## The victim
#
# A client uploads the gradient of two photographs at the initial weights of a convolutional network.

# %%
photographs = data.load("photographs", n=2)
model = models.build("convnet", photographs.x.shape[1:], len(photographs.classes))
variables = model.init(jax.random.key(0))
share = protocols.ClientShare(model)
secret = Batch(jnp.asarray(photographs.x)[:, None], jnp.asarray(photographs.y, jnp.int32), jnp.arange(2))
seen = Observation(jnp.zeros((), jnp.int32), variables, jax.jit(share)(variables, secret))

# %% [markdown]
# ## The comparison
#
# All attacks see the same upload and have the same number of iterations. Labels are inferred. The truth comes in
# after an attack has chosen its answer.

# %%
rows = {"private images": photographs.x}
curves = {}
for name, settings in {
    "every tensor alike (ours)": every_tensor_alike(),
    "Inverting Gradients": presets.inverting_gradients(400),
    "FedLeak": presets.fedleak(400),
}.items():
    attack = attacks.inversion(model, share, settings, batch_size=2)
    found, _, infos = audit.invert(attack, seen, audit.template_of(secret), key=jax.random.key(1))
    scores, order = metrics.image_scores(photographs.x, found.x[:, 0], true_labels=secret.y, labels=found.y)
    rows[f"{name}: {scores['psnr']:.1f} dB"] = np.clip(found.x[:, 0], 0, 1)[order]
    curves[name] = (np.arange(len(infos["distance"])), infos["distance"])
    print(f"{name:<26} {scores['psnr']:5.1f} dB, SSIM {scores['ssim']:.2f}, labels {scores['label_accuracy']:.0%}")
print(f"{'a grey image':<26} {scores['psnr_grey']:5.1f} dB")

# %% [markdown]
# The grey image is the score of an attack that found nothing. Two photographs and one draw of the weights are an
# example and not a comparison. For a comparison, make the attacks once, since each is compiled once, and put the rest
# into a function of a seed. Give that seed to `data.load` and to every `jax.random.key`, and report the mean and the
# spread over several seeds that were chosen beforehand.

# %%
sheets.comparison_sheet(Path("pictures/attacks.png"), rows, title="Two photographs behind one gradient")

# %% [markdown]
# ![Private photographs and what three attacks make of their gradient](pictures/attacks.png)
#
# The curves below are the attackers' own distances. They are different functions, so their heights cannot be
# compared; what can be seen is whether an attack still descends when its iterations are used up.

# %%
plots.curves(
    Path("pictures/distances.png"), curves, title="What each attack brings down", xlabel="iteration",
    ylabel="the attack's own distance", log_y=True,
)  # fmt: skip

# %% [markdown]
# ![The distance of each attack over its iterations](pictures/distances.png)
#
# The commands take the function as it is: `jaxleak invert --attack FILE.py:every_tensor_alike`
# ([how](../your_attack.md)). To keep the attack in a clone, move the function to `jaxleak/attacks/presets.py` and add
# it to `PRESETS` there: `jaxleak invert --attack NAME` then runs it. `CONTRIBUTING.md` has the recipe, with the tests
# that every attack has to pass. An attack that is no gradient inversion is three functions, `jaxleak.Attack`, and
# `audit.invert` runs it alike.
