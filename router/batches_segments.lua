-- The paths of what was written, in order. ARGV: prefix, id. Returns {output's, error's}
return {redis.call('LRANGE', key .. ':out', 0, -1), redis.call('LRANGE', key .. ':err', 0, -1)}
