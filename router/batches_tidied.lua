-- It has ended, and nothing of it is left behind. ARGV: prefix, id
return redis.call('ZREM', P .. 'batches:active', id)
