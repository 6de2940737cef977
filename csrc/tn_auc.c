/* tn_auc.c - the area under the ROC curve from counts, for showing it while training. */
#include <math.h>

#include "tnctl.h"

void tn_auc_update(const float *logits, const float *labels, uint64_t n, uint64_t *clicks,
                   uint64_t *others, uint32_t bins) {
    float half = (float)bins / 2;
    for (uint64_t i = 0; i < n; i++) {
        float z = logits[i];
        /* An infinite logit would divide to NaN. */
        float squashed = isinf(z) ? copysignf(1, z) : z / (1 + fabsf(z));
        float place = half + half * squashed;
        uint32_t bin = place >= (float)bins ? bins - 1 : place > 0 ? (uint32_t)place : 0;
        (labels[i] >= 0.5f ? clicks : others)[bin]++;
    }
}

double tn_auc_result(const uint64_t *clicks, const uint64_t *others, uint32_t bins) {
    double above = 0, all_clicks = 0, all_others = 0;
    for (uint32_t i = 0; i < bins; i++) {
        double p = (double)clicks[i], q = (double)others[i];
        above += p * (all_others + q / 2);
        all_clicks += p;
        all_others += q;
    }
    return all_clicks > 0 && all_others > 0 ? above / (all_clicks * all_others) : (double)NAN;
}
