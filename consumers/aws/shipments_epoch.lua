-- The epoch of the board in which its shipments are whole. ARGV: prefix, epoch ('' only asks). Returns it, '' for none
if ARGV[2] ~= '' then redis.call('SET', P .. 'epoch', ARGV[2]) end
return redis.call('GET', P .. 'epoch') or ''
