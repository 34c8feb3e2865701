/* A fuzzer's driver for compilers without libFuzzer: mutates the files of a folder, the same way in each run.
 * usage: fuzz_inputs FOLDER SECONDS */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { SEEDS_MAX = 64, LEN_MAX = 4096 };

static struct {
  uint8_t data[LEN_MAX];
  size_t len;
} seeds[SEEDS_MAX];
static unsigned seed_count;
static uint64_t state = 0x9e3779b97f4a7c15u;

static uint32_t any(uint32_t below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 33) % below;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void read_seeds(const char *folder) {
  struct dirent **names;
  int n = scandir(folder, &names, NULL, by_name);
  for (int i = 0; i < n; i++) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
    FILE *file = names[i]->d_name[0] != '.' && seed_count < SEEDS_MAX ? fopen(path, "rb") : NULL;
    free(names[i]);
    if (!file) continue;
    seeds[seed_count].len = fread(seeds[seed_count].data, 1, LEN_MAX, file);
    seed_count++;
    fclose(file);
  }
  if (n >= 0) free(names);
}

static size_t change(uint8_t *data, size_t len) {
  static const uint8_t odd[] = {0, 1, 4, 5, 6, 0x7f, 0x80, 0xff, '"', '\\',
                                '{', '}', '[', ']', ',', ':', '/', '\r', '\n'};
  switch (any(6)) {
    case 0: /* one byte */
      if (len) data[any((uint32_t)len)] = (uint8_t)any(256);
      return len;
    case 1:
      if (len) data[any((uint32_t)len)] = odd[any(sizeof odd)];
      return len;
    case 2: /* cut */
      return any((uint32_t)len + 1);
    case 3: { /* take a piece out */
      if (len < 2) return len;
      size_t from = any((uint32_t)len), n = 1 + any((uint32_t)(len - from));
      memmove(data + from, data + from + n, len - from - n);
      return len - n;
    }
    case 4: { /* repeat a piece */
      if (!len) return len;
      size_t from = any((uint32_t)len), n = 1 + any((uint32_t)(len - from));
      if (len + n > LEN_MAX) return len;
      memmove(data + from + n, data + from, len - from);
      return len + n;
    }
    default: { /* the end of another */
      size_t other = any(seed_count), from = any((uint32_t)seeds[other].len + 1), n = seeds[other].len - from;
      size_t at = any((uint32_t)len + 1);
      if (at + n > LEN_MAX) return len;
      memcpy(data + at, seeds[other].data + from, n);
      return at + n;
    }
  }
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  read_seeds(argv[1]);
  if (seed_count == 0) return 2;
  time_t end = time(NULL) + atol(argv[2]);
  unsigned long runs = 0;
  for (unsigned i = 0; i < seed_count; i++) LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].len);
  do {
    for (int i = 0; i < 1000; i++, runs++) {
      static uint8_t data[LEN_MAX];
      unsigned seed = any(seed_count);
      size_t len = seeds[seed].len;
      memcpy(data, seeds[seed].data, len);
      for (uint32_t n = 1 + any(8); n; n--) len = change(data, len);
      LLVMFuzzerTestOneInput(data, len);
    }
  } while (time(NULL) < end);
  printf("%lu inputs\n", runs);
  return 0;
}
