/* embeddings.c - an export of embeddings: dictionaries, one per share group */
#include "embeddings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fields.h"
#include "ids.h"
#include "message.h"

/* ---- Manifests: an export and all that it is a delta of ----------------- */

/* The manifest of a folder, if it is one of these. */
static const json_value *read_manifest(embeddings *out, uint32_t number, const char *folder,
                                       char *error) {
    const json_value *manifest = read_json_file(folder, "manifest.json", &out->texts[number],
                                                &out->documents[number], error);
    if (manifest == NULL) {
        return NULL;
    }
    if (!json_is(json_get(manifest, "format"), "tnctl embeddings") ||
        !json_is(json_get(manifest, "encoding"), "dictionary")) {
        refuse(error,
               "%s is no export in format dictionary. Make one: tnctl export-embeddings "
               "format=dictionary",
               folder);
        return NULL;
    }
    return manifest;
}

/* The folder of a base: a name without slash stands beside the delta. 0 when it is too long. */
static int base_folder(const char *folder, const json_value *base, char *out, size_t room) {
    size_t parent = strlen(folder);
    while (parent > 0 && folder[parent - 1] == '/') {
        parent--;
    }
    while (parent > 0 && folder[parent - 1] != '/') {
        parent--;
    }
    if (memchr(base->text, '/', base->length) != NULL) {
        parent = 0;
    }
    int n = snprintf(out, room, "%.*s%.*s", (int)parent, folder, (int)base->length, base->text);
    return n >= 0 && (size_t)n < room;
}

/* ---- Groups ------------------------------------------------------------- */

static const json_value *entry_of(const json_value *manifest, const json_value *group) {
    const json_value *groups = list_of(manifest, "groups");
    for (const json_value *at = groups + 1; groups && at < json_after(groups);
         at = json_after(at)) {
        if (same_text(text_of(at, "group"), group)) {
            return at;
        }
    }
    return NULL;
}

/* One file of an export, with the index that it may have. */
static int open_layer(embedding_group *group, const char *folder, const json_value *manifest,
                      char *error) {
    char file[4096], index[4096];
    const json_value *entry = entry_of(manifest, group->name);
    const json_value *file_name = text_of(entry, "file"), *index_name = text_of(entry, "index");
    if (entry == NULL && list_of(json_get(manifest, "filter"), "slots") != NULL) {
        return 1; /* left out: its ids are unknown */
    }
    if (json_get(entry, "parts") != NULL) {
        return refuse(error, "%s has its rows in parts. Make one export of them: tnctl fold",
                      folder);
    }
    if (file_name == NULL) {
        return refuse(error, "%s has no group %.*s. Export with the slots that read it", folder,
                      (int)group->name->length, group->name->text);
    }
    int n = snprintf(file, sizeof file, "%s/%.*s", folder, (int)file_name->length, file_name->text);
    if (n < 0 || (size_t)n >= sizeof file) {
        return refuse(error, "the name %.200s... is too long", folder);
    }
    if (index_name != NULL) {
        n = snprintf(index, sizeof index, "%s/%.*s", folder, (int)index_name->length,
                     index_name->text);
    }
    if (n < 0 || (size_t)n >= sizeof index) {
        return refuse(error, "the name %.200s... is too long", folder);
    }
    int code = tn_dictionary_open(file, index_name ? index : NULL, &group->layers[group->n_layers]);
    if (code != TN_DICTIONARY_OK) {
        int of_index = code == TN_DICTIONARY_NO_INDEX || code == TN_DICTIONARY_BAD_INDEX;
        int no_file = code == TN_DICTIONARY_NO_FILE || code == TN_DICTIONARY_NO_INDEX;
        return refuse(error, "%.300s: %s", of_index ? index : file,
                      no_file ? strerror(errno) : tn_dictionary_message(code));
    }
    group->n_layers++;
    return 1;
}

/* The rows of a slot must be those that serving.json speaks of. */
static int check_rows(const slot *slot, const tn_dictionary *rows, char *error) {
    tn_dictionary_facts facts;
    tn_dictionary_about(rows, &facts);
    if (facts.salt != value_id(slot->group->text, slot->group->length, 0) ||
        facts.linear != (uint32_t)slot->linear || facts.width != slot->width ||
        facts.cvm != (uint32_t)slot->cvm) {
        return refuse(error,
                      "slot %.*s has other rows in the export than in the graph. Export "
                      "again",
                      (int)slot->name->length, slot->name->text);
    }
    return 1;
}

static embedding_group *group_of(embeddings *out, const json_value *name) {
    for (uint32_t i = 0; i < out->n_groups; i++) {
        if (same_text(out->groups[i].name, name)) {
            return &out->groups[i];
        }
    }
    out->groups[out->n_groups].name = name;
    return &out->groups[out->n_groups++];
}

/* The files of one export, below those that are there. */
static int open_layers(embeddings *out, const char *folder, const json_value *manifest,
                       char *error) {
    for (uint32_t i = 0; i < out->n_groups; i++) {
        if (!open_layer(&out->groups[i], folder, manifest, error)) {
            return 0;
        }
    }
    return 1;
}

/* All exports of the chain, the newest first. */
static int open_chain(embeddings *out, const char *folder, const description *description,
                      char *error) {
    char current[4096], base[4096];
    const json_value *wanted = NULL;
    if ((size_t)snprintf(current, sizeof current, "%s", folder) >= sizeof current) {
        return refuse(error, "the name %.200s... is too long", folder);
    }
    for (uint32_t number = 0; number < LONGEST_CHAIN; number++) {
        const json_value *manifest = read_manifest(out, number, current, error);
        if (manifest == NULL) {
            return 0;
        }
        const json_value *of = text_of(json_get(manifest, "checkpoint"), "sha256");
        if (number == 0 && !same_text(of, description->checkpoint)) {
            return refuse(error,
                          "%s was made from another checkpoint than the graph. Split and "
                          "export the same one",
                          current);
        }
        if (number > 0 && !same_text(text_of(manifest, "sha256"), wanted)) {
            return refuse(error,
                          "%s holds another export now than the delta was made of. Export "
                          "in full",
                          current);
        }
        if (!open_layers(out, current, manifest, error)) {
            return 0;
        }
        const json_value *next = json_get(manifest, "base");
        const json_value *next_folder = text_of(next, "folder");
        if (next_folder == NULL) {
            return 1;
        }
        wanted = text_of(next, "sha256");
        if (!base_folder(current, next_folder, base, sizeof base)) {
            return refuse(error, "the name %.200s... is too long", current);
        }
        memcpy(current, base, sizeof current);
    }
    return refuse(error, "%s has more than %d deltas. Fold them: tnctl fold", folder,
                  LONGEST_CHAIN - 1);
}

int embeddings_open(embeddings *out, const char *folder, const description *description,
                    char error[ERROR_BYTES]) {
    out->groups = zeros(description->n_slots, sizeof *out->groups, error);
    out->of_slot = zeros(description->n_slots, sizeof *out->of_slot, error);
    if (out->groups == NULL || out->of_slot == NULL) {
        return 0;
    }
    for (uint32_t i = 0; i < description->n_pooled; i++) {
        group_of(out, description->slots[description->pooled[i]].group);
    }
    if (!open_chain(out, folder, description, error)) {
        return 0;
    }
    for (uint32_t i = 0; i < out->n_groups; i++) {
        embedding_group *group = &out->groups[i];
        if (group->n_layers <= 1) {
            group->rows = group->layers[0];
            continue;
        }
        int code = tn_dictionary_stack((const tn_dictionary *const *)group->layers, group->n_layers,
                                       &group->stack);
        if (code != TN_DICTIONARY_OK) {
            return refuse(error, "%s and what it is a delta of: %s", folder,
                          tn_dictionary_message(code));
        }
        group->rows = group->stack;
    }
    for (uint32_t i = 0; i < description->n_pooled; i++) {
        uint32_t number = description->pooled[i];
        const slot *slot = &description->slots[number];
        out->of_slot[number] = group_of(out, slot->group)->rows;
        if (out->of_slot[number] && !check_rows(slot, out->of_slot[number], error)) {
            return 0;
        }
    }
    return 1;
}

void embeddings_close(embeddings *embeddings) {
    for (uint32_t i = 0; i < embeddings->n_groups; i++) {
        tn_dictionary_close(embeddings->groups[i].stack);
        for (uint32_t j = 0; j < embeddings->groups[i].n_layers; j++) {
            tn_dictionary_close(embeddings->groups[i].layers[j]);
        }
    }
    for (uint32_t i = 0; i < LONGEST_CHAIN; i++) {
        json_free(&embeddings->documents[i]);
        free(embeddings->texts[i]);
    }
    free(embeddings->groups);
    free(embeddings->of_slot);
}
