"""The public interface: the names of every module, the rules for names, and the cost of imports."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import jaxleak
from jaxleak import attacks

ROOT = Path(jaxleak.__file__).parent.parent

#: Every public module with its exact names. New or renamed names must also be changed here.
NAMES = {
    "jaxleak": """
        Attack attacks audit Batch capture checkpoint data defenses metrics models objectives Observation
        Protocol protocols Reconstruction study threats Transcript
    """,
    "jaxleak.attacks": """
        adaptive aggregated cafe cafe_censored cafe_exact cafe_ordinal check_payload client_updates epoch_copies
        infer_labels inversion LABEL_RULES party_records patch_embedding plan_cafe_exact presets Settings
        spear train_vflrecon vflrecon vflrecon_free
    """,
    "jaxleak.attacks.adaptive": """
        Informed informed informed_party informed_rounds InformedRounds reads_prior reads_weights rounds_attack
        RoundsAttack
    """,
    "jaxleak.attacks.aggregated": """
        aligned_batch_statistics aligned_cosine_tv aligned_dlg aligned_group_consistency aligned_idlg
        aligned_matching aligned_sapag CAFE_ICLR CAFE_UPSTREAM CafeCensoredState CafeExactPlan
        CafeHyperparameters CafeOptimizers CafeOptions CafeOrdinalState CafeState cosine_options
        FeatureInversionOptions FeatureInversionResult invert_features invert_slices kernel_to_bias_ratio
        normalized_sgd published_hyperparameters Recovery shard_cafe SliceInverter TABLE9 true_output_gradients
        twice_corrected_adam visible_entries
    """,
    "jaxleak.attacks.client_updates": """
        activation_prior AnyLoss Candidate cma_es Compared Comparison DataTerm Evidence generator_latents
        generator_weights Gradients latent_prior leaves_read MATCHED_BELOW natural_tv pixels Prior PublicGenerator
        recommended_smoothing recommended_tv RowSpaces Setup Shifts size_prior Smoothing smoothing
        SPEAR_ITERATIONS statistics_prior train_generator variation_prior
    """,
    "jaxleak.attacks.party_records": """
        aligned_signals direction_labels EmbeddingRegression FeatureBaseline FIELD_CANDIDATES FIELDS FieldSelection
        fit_embedding_regression
        fit_aligned_features fit_feature_baseline fit_gradient_regression fit_label_baseline flat_observations
        free_labels FreeLabels GradientRegression join_runs LabelBaseline norm_labels PAPER_FIELDS
        ReconstructionNet recorded select_fields SHADOW_INITS shadow_params ShadowInit sign_labels solved_embeddings
        victims_features
    """,
    "jaxleak.attacks.presets": """
        any_loss bayes cosine_decay_adam dlg fedleak fedleak_paper fedleak_upstream FILTERED_FROM GENERATIVE ggl
        GGL_POPULATION gradinversion idlg inverting_gradients KEEPING_SIGNS LINE_SEARCHES preset PRESETS rog row_space
        sapag signed step_decay_adam
    """,
    "jaxleak.audit": """
        AGREE_ABOVE Agreement agreement all_starts Answer best_restart Callback check_client check_update Executor
        EXECUTORS EXIT_STATUS Finding frozen_trials indistinct init_key InversionRun invert replay require_bytes
        Rival rival run RunState start template_of update Verdict watch write_report
    """,
    "jaxleak.audit.mistakes": """
        Claim Client false_claims FalseClaims MISTAKES
    """,
    "jaxleak.capture": """
        as_update FactOptions Facts fit flower_mod flower_strategy gradient_of KINDS load named_arrays read_arrays
        read_npz_array save Update
    """,
    "jaxleak.checkpoint": """
        Checkpoints ConfigMismatchError FolderInUseError
    """,
    "jaxleak.data": """
        archive assemble_columns assemble_tiles check_classes CLIENT_PARTITIONS ColumnLayout Dataset dirichlet encode
        feature_columns feature_skew fit_encoding iid image_tiles label_skew load load_table missing_entries OVERLAPPING
        partition_clients partition_features party_slices PUBLISHED quantity_skew sample_digests Table TableEncoding
        TABLES TileLayout
    """,
    "jaxleak.defenses": """
        adam_step adaptive_dp_sgd bits_on_the_wire cancelling_noise chain check_mechanism CLIENT_DEFENSES
        client_defense ClientDefense clipped_gaussian composed Defense dp_sgd epsilon_of epsilon_of_schedule
        fake_gradients feature_dropout gaussian_noise guardian HORIZONTAL_PLACES label_dp_scale
        laplace_noise magnitude_noise marvell MechanismComparison mechanisms
        classical_noise_multiplier noise_multiplier_of noise_multiplier_shorthand outpost PayloadEncoding per_leaf
        quantize Reading SHORTHAND_DELTA soteria sparsify
        split_defense SPLIT_DEFENSES SPLIT_PLACES SplitDefense SplitRun stateless true_epsilon vfl_defender
        withhold_top
    """,
    "jaxleak.defenses.mechanisms": """
        AdamStep Clipped GaussianNoise LaplaceNoise Mechanism Noise PrivateNoise ProportionalNoise RankedNoise
        Recomputed Replayed Simulation TensorNoise
    """,
    "jaxleak.metrics": """
        balanced_label_accuracy best_match_psnr feature_mse feature_r2 feature_variance grey_psnr image_scores
        label_accuracy label_multiset_accuracy lpips match_best match_one_to_one mean_color_psnr mse psnr
        psnr_channel_peak psnr_up_to_scale psnr_upstream ssim tinted_like
    """,
    "jaxleak.models": """
        ACTIVATIONS all_dense avg_pool BatchNorm bottom_top BottomTopModel build
        cafe_horizontal cafe_vertical Classifier classifier CLASSIFIERS conv2d convnet convnet_ig
        densenet121 describe freeze from_equinox from_file from_flax from_function from_torch frozen_features
        global_avg_pool HeadLayer IMAGENET_MEAN IMAGENET_STD initializers lenet load_weights logistic max_pool mlp mlp3
        mobilenet_v2 normalized Outputs resnet resnet10 resnet10_x3 resnet10_x5 resnet18 resnet34 save_weights
        smooth_max soft_relu split_model SplitModel vit vit_small vit_tiny
    """,
    "jaxleak.objectives": """
        activation_penalty activation_statistics_distance apply_mask batch_norm_distance binary_cross_entropy
        bn_objective
        cafe_objective check_distance cosine cosine_tv_objective cross_entropy Distance dlg_objective
        double_softmax_cross_entropy feature_distance fixed_share focal_loss gaussian_kernel gaussian_likelihood
        gc_objective gradient_regularization GradientRegularization group_consistency group_distance l1 l2_prior
        laplace_likelihood layer_norms layer_weighted LOSSES matching_objective MatchingObjective mean_l1
        mean_total_variation negative_log_likelihood partial_distance profile_likelihood Quantities regularized_gradient
        relative_l1
        relative_total_variation
        row_space_distance sapag_objective SelectBy Selection smoothed_cross_entropy soft_labels
        squared_error squared_l2 summed_total_variation TERMS
        top_share total_variation truncated_tv weighted
    """,
    "jaxleak.protocols": """
        aggregate averaged_share client ClientShare draw_batch draw_worker_batches encrypted_first
        federated_averaging FederatedAveraging FederatedState horizontal InteractiveLayer largest_entry
        masked_payloads MaskedPayloads split_state split_training vertical
    """,
    "jaxleak.study": """
        cell_reports cells default_out digest distributed files forget_when_many has_run ledger peak_memory_gb plots
        print_metrics Progress provenance read_weights read_weights_and_counters reports require_own_folder rows
        run_command runner RunFolder sheets sources stopped_message StoppedBySignal
    """,
    "jaxleak.study.cell_reports": """
        finish_cells write_cells write_rows
    """,
    "jaxleak.study.cells": """
        best_match Budget Cell curve_at iterations_to joined over_rounds Results run_cells score_named
    """,
    "jaxleak.study.distributed": """
        Devices join_devices together
    """,
    "jaxleak.study.files": """
        append_line as_text jsonable naming partial_of read_json read_lines read_npz read_numbers Stored
        write_bytes write_json write_npz write_text
    """,
    "jaxleak.study.ledger": """
        agrees as_record Better beyond beyond_counts cell_status claims commit_of DATA_FILE data_of DataSet
        DataSets Directions draw_entries draw_sheets Entry from_record impossible_entries judge LACKING Ledger
        mean_and_spread MEASURED
        Measurement named NO_ENTRY printed_cells Queue Recheck recheck RECHECKS_FILE record_rechecks require_measured
        require_printed RULE Status status_table status_text STATUSES Study summary table_counts TOLERANCE
        TOO_COSTLY Variant variant_counts VARIANTS
    """,
    "jaxleak.study.parties": """
        about_run ADVERSARY ATTACK_LABELS column_section correlations draw_correlations draw_pictures draw_strips
        FieldName IMAGE_WIDTHS in_report in_short OptimizerName OPTIMIZERS PLAIN_RATES Records records_of run_case Runs
        runs_for score_name seconds_of sources_of_parties split_problem SplitCase SplitJob SplitJobs SplitProblem
        SplitSetup task_scores THREAT
    """,
    "jaxleak.study.plots": """
        certificate curves grouped_bars LEAST_SPAN legend_below residual_scatter save_figure scaling SPOKEN STYLE
        subplots trade_off
    """,
    "jaxleak.study.reports": """
        bullets command_line markdown_table Measure measured print_measures Section write_markdown
    """,
    "jaxleak.study.rows": """
        Beside BEYOND_BUDGET console grouped NO_DATA NOT_ASKED print_grouped require_match require_runs show_cells
        show_table value_of WIDTH
    """,
    "jaxleak.study.runner": """
        ByType Cost Jobs named_before Result Runner runner_in
    """,
    "jaxleak.study.sheets": """
        comparison_sheet contact_sheet FLAG_COLOUR
    """,
    "jaxleak.study.rounds": """
        channel_peak_psnr forward_features horizontal_problem image_psnr observe_and_recover Problem
        reconstruction_metrics relative_errors require_memory_of_rounds sources_of_rounds step_three
        steps_one_and_two table_r2 Tables vertical_problem
    """,
    "jaxleak.study.rounds.runs": """
        CAP cap defense_named descent exact FAKE FAKE_SAID nested_tables NestedTables PICTURE_KEY pictures PICTURES
        Setting single STEPS steps_of THRESHOLDS training
    """,
    "jaxleak.study.rounds.jobs": """
        CafeJobs seconds
    """,
    "jaxleak.study.sources": """
        Arrays arrays_of contents drawn drawn_name form_of own_code samples_in Sources SOURCES_FILE unavailable
    """,
    "jaxleak.study.updates": """
        about_clients about_defenses about_model asked_for_rivals attack ATTACKS basin believed_rates build_model
        by_local_steps captions Case
        cell_of_point check check_effect client_of CLOSED_FORM compared COMPILE_SECONDS defense_of diagnostics
        draw_distances draw_reconstructions Federation first_distances forward_seconds generator_for HELD_OUT
        HOMOTOPY_ROWS Inversion Inversions kind_of_defense leak_order observe Outcome own_opinion parameter_count
        parse_strengths public_images reads_nothing RECOGNISED_ABOVE refuse_overlap require_defenses
        require_memory_of_update require_no_overlap Resolved resolved run_trade_off
        seconds_of_update settings_as_run share_of sources_of_update steps_in_words swept_points SYNTHETIC
        trade_off_runner TradeOffPoint trained Training unhelped Utilities Utility utility_of Victim victim where_seen
    """,
    "jaxleak.study.updates.basin": """
        CANDIDATES distances NOISE reach_of_row
    """,
    "jaxleak.study.updates.diagnostics": """
        FIG1_ATTACKED fig1_seeds label_rules magnitude_sensitivity NOISE_DRAWS parabola_path path_steepness
        settled_after sign_noise STRENGTHS summary_of_ratios
    """,
    "jaxleak.threats": """
        BIAS_GRADIENT_ONLY FIRST_LAYER_ONLY HONEST_BUT_CURIOUS_SERVER label_holder_view party_view
        SERVER_WITHOUT_INDICES Threat view
    """,
}

#: Short names that are clear together with their module's name, as in `data.load` and `capture.load`.
READ_WITH_THEIR_MODULE = {"load", "save"}

#: Modules that take longer to import than the rest of the package together, and that no attack needs before it runs.
HEAVY = ("chex", "matplotlib", "orbax", "scipy.stats", "skimage", "sklearn", "tensorflow_datasets", "torch")


def public_modules():
    """All modules of the package whose path has no underscore."""
    found = pkgutil.walk_packages(jaxleak.__path__, "jaxleak.")
    return {"jaxleak", *(module.name for module in found if "._" not in module.name)} - {"jaxleak.__main__"}


def test_every_public_module_is_listed():
    assert public_modules() == set(NAMES)


@pytest.mark.parametrize("module", NAMES)
def test_a_module_shows_exactly_its_names(module):
    shown = importlib.import_module(module)
    assert sorted(shown.__all__) == sorted(NAMES[module].split())
    assert all(hasattr(shown, name) for name in shown.__all__)
    assert set(shown.__all__) <= set(dir(shown))


def test_no_two_things_share_a_name():
    things = defaultdict(set)
    for module in NAMES:
        shown = importlib.import_module(module)
        for name in shown.__all__:
            things[name].add(id(getattr(shown, name)))
    assert {name for name, found in things.items() if len(found) > 1} <= READ_WITH_THEIR_MODULE


def test_the_attacks_are_a_table_on_one_screen():
    lines = attacks.__doc__.splitlines()
    rows = [re.match(r"\| `(\w+)` +\| (.+?) +\|$", line) for line in lines]
    described = {row[1]: row[2] for row in rows if row}
    assert sorted(described) == sorted(attacks.__all__)
    assert len(attacks.__all__) <= 21
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 120


def test_no_function_of_the_library_is_longer_than_two_screens():
    lengths = {
        f"{path.relative_to(ROOT)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in (ROOT / "jaxleak").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > 120} == {}


def _python(program):
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


def test_importing_the_attacks_imports_nothing_heavy():
    loaded = _python(f"import sys, jaxleak.attacks; print(*[name for name in {HEAVY} if name in sys.modules])")
    assert loaded == []


def test_the_package_imports_its_subpackages_when_they_are_first_used():
    program = (
        "import sys, jaxleak; before = 'jaxleak.models' in sys.modules; jaxleak.models.build; "
        "print(before, 'jaxleak.models' in sys.modules, hasattr(jaxleak, 'nosuch'))"
    )
    assert _python(program) == ["False", "True", "False"]


def test_the_version_is_that_of_the_installed_package():
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", jaxleak.__version__)
    assert f'version = "{jaxleak.__version__}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
def test_a_users_program_passes_the_strictest_type_check(tmp_path):
    readme = (ROOT / "README.md").read_text()
    program = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    file = tmp_path / "program.py"
    # A user's mypy reads the types of installed packages but reports no errors there, as with --follow-imports=silent.
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(file)]
    assert (ROOT / "jaxleak" / "py.typed").exists()
    mistake = "audit.update(model)\n"
    for added, message in [("", "Success"), (mistake, 'Missing positional arguments "variables", "update"')]:
        file.write_text(program + added)
        checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert message in checked.stdout, checked.stdout
