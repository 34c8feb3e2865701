/* What pyxis is to Slurm: a plugin that adds --container-image. Tasks are told the image in PYXIS_IMAGE, and that is all.
 *
 * VERSION is that of Slurm, as 0xMMmmpp. No header: Slurm's are in a package of their own. */
#include <stddef.h>

typedef struct spank_handle *spank_t;
struct spank_option {
    char *name, *arginfo, *usage;
    int has_arg, val;
    int (*cb)(int val, const char *optarg, int remote);
};
int spank_setenv(spank_t spank, const char *name, const char *value, int overwrite);

const char plugin_name[] = "pyxis";
const char plugin_type[] = "spank";
const unsigned int plugin_version = VERSION;
const unsigned int spank_plugin_version = 1;

static const char *image;

static int chosen(int val, const char *optarg, int remote)
{
    (void)val;
    (void)remote;
    image = optarg;
    return 0;
}

struct spank_option spank_options[] = {
    {"container-image", "IMAGE", "the image", 1, 0, chosen},
    {NULL, NULL, NULL, 0, 0, NULL},
};

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return image ? spank_setenv(spank, "PYXIS_IMAGE", image, 1) : 0;
}
